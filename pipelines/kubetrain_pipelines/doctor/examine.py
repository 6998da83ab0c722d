"""Look at all that a run needs, one thing after the other: none hangs, and none that fails ends the rest."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property, partial

from kubetrain_components.expose_dataset.ensure_claim import WantedClaim
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden, KubernetesError, Unauthorized, Unreachable
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_components.sync_dataset.cluster_sync import wanted_claims
from kubetrain_components.sync_dataset.sync import transfer_placement
from kubetrain_pipelines.doctor import admission, data, installed, probes, queues, rights, room
from kubetrain_pipelines.doctor.cluster import Cluster
from kubetrain_pipelines.doctor.finding import Finding, Verdict, attempt, missing, ok, skipped, unknown
from kubetrain_pipelines.doctor.needs import NeededSecret, Needs, Pods
from kubetrain_pipelines.doctor.pipelines_api import find_pipelines
from kubetrain_pipelines.doctor.plan_probes import plan_probes, storage_facts
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_trainer.errors import KubetrainError

Say = Callable[[str], None]

PATIENCE_SECONDS = 5.0
"""What a server cannot answer by then is unknown."""


def cluster_missing(error: KubetrainError) -> Finding:
    return replace(missing(str(error), "export KUBECONFIG=FILE\nkubectl version"), check="cluster")


@dataclass
class Examination:
    api: KubernetesApi
    parameters: RunParameters
    say: Say
    account: str = ""
    """Empty: the first that is there of those that runs have."""
    connection: Connection | None = None
    asks_dataset: bool = False
    asks_model: bool = False
    with_pods: bool = True
    _lost: list[Unreachable] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.api.retry_seconds = min(self.api.retry_seconds, PATIENCE_SECONDS)

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.api)

    @cached_property
    def needs(self) -> Needs:
        return Needs.of(planned_manifests(self.parameters))

    def findings(self) -> Iterator[Finding]:
        try:
            yield replace(self._server(), check="cluster")
        except KubetrainError as error:
            yield cluster_missing(error)
            return
        for check, find in self._questions():
            yield self._attempt(check, find)
        tried = list(self._by_pods())
        yield from tried
        s3 = next((each.verdict for each in tried if each.check == "S3 dataset"), Verdict.SKIPPED)
        for name, needed in self.needs.secrets.items():
            yield self._attempt(f"secret {name}", partial(self._secret, name, needed, s3))
        # At last: where its service has no pods, the API server sounds as if itself were in trouble.
        yield self._attempt("Kubeflow Pipelines", partial(find_pipelines, self.cluster, self.connection))

    def _questions(self) -> Iterator[tuple[str, Callable[[], Finding]]]:
        yield "training kinds", self._kinds
        yield "training operator", lambda: installed.judge_operator(self.cluster.operator)
        yield "init container", self._init_container
        yield "namespace", self._namespace
        yield "account", self._account
        for file in (rights.NEEDED, *rights.OPTIONAL):
            yield f"rights: {file.removesuffix('.yaml').replace('_', ' ')}", partial(self._rights, file)
        for pods in self.needs.pods:
            yield f"admission: {pods.stage} {pods.role.lower()}", partial(self._admission, pods)
        yield "Istio", self._istio
        yield "queue", self._queue
        yield "quota", self._quota
        yield "nodes", self._nodes
        yield "storage class", self._storage_class
        for wanted in wanted_claims(self.parameters):
            yield f"{wanted.purpose} claim", partial(self._claim, wanted)
        yield "exposure", self._exposure

    def _attempt(self, check: str, find: Callable[[], Finding]) -> Finding:
        """Once the server has not answered in all the time it was given, nothing more is asked."""
        if self._lost:
            return replace(unknown(str(self._lost[0])), check=check)

        def asked() -> Finding:
            try:
                return find()
            except Unreachable as error:
                self._lost.append(error)
                raise

        return attempt(check, asked)

    def _server(self) -> Finding:
        version = (self.cluster.get("/version") or {}).get("gitVersion")
        if not version:
            raise KubernetesError("what answers is no Kubernetes API server: check KUBECONFIG")
        return ok(f"Kubernetes {version}")

    def _kinds(self) -> Finding:
        return installed.judge_kinds(self.needs.kind, self.cluster.training_kinds, self.cluster.groups)

    def _init_container(self) -> Finding:
        operator = self.cluster.operator
        if operator is None:
            return unknown("there is no training operator")
        name, namespace = installed.template_claim(operator), operator["metadata"]["namespace"]
        mapped = self.cluster.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}") if name else None
        return installed.judge_init_container(
            operator,
            ((mapped or {}).get("data") or {}).get(installed.TEMPLATE_FILE),
            is_restricted=self.cluster.labels().get(admission.ENFORCED) == "restricted",
            is_needed=self.needs.has_workers_beside_master,
        )

    def _namespace(self) -> Finding:
        name = self.cluster.namespace
        if self.cluster.own_namespace is None:
            return missing(f"there is no namespace {name}", f"kubectl create namespace {name}")
        return ok(
            f"{name} enforces Pod Security {self.cluster.labels().get(admission.ENFORCED, 'as the cluster does')}"
        )

    @property
    def _account_name(self) -> str:
        return self.account or self.cluster.usual_account

    def _account(self) -> Finding:
        found = self.cluster.own("v1", "serviceaccounts", self._account_name)
        return rights.judge_account(self._account_name, self.cluster.namespace, found is not None)

    def _rights(self, file: str) -> Finding:
        calls, namespace = rights.calls_of(file, self.cluster.groups), self.cluster.namespace
        account = self._account_name
        try:
            allowed = {call: self.cluster.review(*rights.review_of(call, namespace, account)) for call in calls}
        except Forbidden as obstacle:
            own = {call: self.cluster.review(*rights.self_review_of(call, namespace)) for call in calls}
            return rights.judge_own_rights(own, account, str(obstacle))
        return rights.judge_rights(file, allowed, account, namespace)

    def _admission(self, pods: Pods) -> Finding:
        """The server's own word on such a pod, which it does not make."""
        metadata = {**pods.template["metadata"], "generateName": "kubetrain-doctor-"}
        spec = {"restartPolicy": "Never", **pods.spec}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        try:
            self.api.create(self.api.path("v1", "pods"), pod, dryRun="All")
        except (Forbidden, Unauthorized, Unreachable):
            raise
        except KubernetesError as refusal:
            return admission.judge_refusal(str(refusal), self.cluster.namespace)
        return ok("the cluster would take such a pod")

    def _istio(self) -> Finding:
        return installed.judge_istio(self.cluster.labels(), is_wanted=self.parameters.placement.istio)

    def _queue(self) -> Finding:
        placement = self.parameters.placement
        if placement.scheduler == "kueue":
            return self._kueue(placement.queue)
        if placement.scheduler:
            return queues.judge_gang(placement, self.cluster.groups, self.cluster.operator)
        return queues.judge_no_queue(self.cluster.operator)

    def _kueue(self, queue: str) -> Finding:
        version = self.cluster.groups.get(queues.KUEUE, "")
        group = f"{queues.KUEUE}/{version}"
        cluster_queues = (
            self.cluster.allowed(lambda: self.cluster.all(f"/apis/{group}/clusterqueues")) if version else []
        )
        settings = self.cluster.allowed(lambda: self.cluster.get(queues.KUEUE_SETTINGS))
        return queues.judge_kueue(
            queue,
            self.cluster.namespace,
            self.cluster.own(group, "localqueues", queue) if version else None,
            [each["metadata"]["name"] for each in cluster_queues or []],
            version,
            "\n".join((settings.get("data") or {}).values()) if settings else None,
            self.needs.kind.removesuffix("s"),
        )

    def _quota(self) -> Finding:
        quotas = self.cluster.all(self.api.path("v1", "resourcequotas"))
        return room.judge_quota(quotas, self.needs, self._new_claims(), self.cluster.namespace)

    def _nodes(self) -> Finding:
        nodes = self.cluster.all("/api/v1/nodes")
        return room.judge_nodes(nodes, self.needs.training, can_grow=self.cluster.can_grow())

    def _storage_class(self) -> Finding:
        wanted, classes = self.parameters.storage.storage_class, self.cluster.storage_classes
        return data.judge_storage_class(wanted, classes, is_needed=bool(self._new_claims()))

    def _claim(self, wanted: WantedClaim) -> Finding:
        return data.judge_claim(wanted, self.cluster.claim(wanted.name), self.cluster.namespace)

    def _exposure(self) -> Finding:
        storage = self.parameters.storage
        claim = self.cluster.claim(storage.staging_claim) or storage.staging.manifest()
        return data.judge_exposure(storage.exposure_of(self.parameters.dataset_uri), storage_facts(self.cluster, claim))

    def _secret(self, name: str, needed: NeededSecret, s3: Verdict) -> Finding:
        found = self.cluster.own("v1", "secrets", name)
        keys = None if found is None else frozenset(found.get("data") or {})  # no values
        if name in transfer_placement(self.parameters).env_secrets:
            return data.judge_s3_secret(name, keys, self.cluster.namespace, s3)
        return data.judge_secret(name, needed, keys, self.cluster.namespace)

    def _by_pods(self) -> Iterator[Finding]:
        s3 = self._s3_tries()
        if self.with_pods and not self._lost:
            try:
                planned = plan_probes(self.cluster, self.parameters, s3)
            except KubetrainError as error:
                yield replace(unknown(str(error)), check="pods")
                return
            yield from probes.judge_outcomes(planned, *probes.try_out(planned, self.api, self.say), list(s3))
        else:
            reason = str(self._lost[0]) if self._lost else "not tried: --no-pods"
            yield replace(unknown(reason) if self._lost else skipped(reason), check="pods")
        for name in {"dataset", "model"} - s3.keys():
            yield replace(skipped(f"not asked: --set {name}_uri=s3://BUCKET/PREFIX"), check=f"S3 {name}")

    def _s3_tries(self) -> dict[str, list[str]]:
        run = self.parameters
        tries = {
            "dataset": [run.dataset_uri, run.s3_endpoint, run.dataset_access],
            "model": [run.model_uri, run.s3_endpoint],
        }
        return {name: tries[name] for name, is_asked in self._asks().items() if is_asked}

    def _asks(self) -> dict[str, bool]:
        return {"dataset": self.asks_dataset, "model": self.asks_model}

    def _new_claims(self) -> list[Manifest]:
        return [each for each in self.needs.claims if self.cluster.claim(each["metadata"]["name"]) is None]
