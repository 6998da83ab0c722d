"""Check everything that a run needs. Each check has a timeout, and a failed one does not stop the others."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

from kubetrain_components.expose_dataset.ensure_claim import WantedClaim
from kubetrain_components.expose_dataset.expose import CannotExpose, ExposureMode, ExposureRequest, plan_exposure
from kubetrain_components.expose_dataset.storage_facts import StorageFacts
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden, KubernetesError, Unauthorized, Unreachable
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.refusals import ENFORCED
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import transfer_placement
from kubetrain_components.sites.plan import planned_manifests
from kubetrain_components.sync_dataset.cluster_sync import wanted_claims
from kubetrain_pipelines.definitions import images
from kubetrain_pipelines.doctor import admission, capacity, data, installed, permissions, probes, queues
from kubetrain_pipelines.doctor.admission import judge_launch_step, judge_refused_launch_step, launch_step_spec
from kubetrain_pipelines.doctor.cluster import Cluster
from kubetrain_pipelines.doctor.finding import Finding, Status, cluster_missing, missing, not_made, ok, skipped, unknown
from kubetrain_pipelines.doctor.judge_probes import judge_outcomes
from kubetrain_pipelines.doctor.launcher import judge_launcher, judge_trainer, taken
from kubetrain_pipelines.doctor.needs import NeededSecret, Needs, Pods
from kubetrain_pipelines.doctor.pipelines_api import check_pipelines
from kubetrain_pipelines.doctor.plan_probes import plan_probes, storage_facts
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

Say = Callable[[str], None]

RETRY_SECONDS = 5.0
"""Short, because a user is waiting. What cannot be read in this time is reported as unknown."""
UNREACHABLE = "not checked: the API server does not answer"


@dataclass
class Examination:
    api: KubernetesApi
    parameters: RunParameters
    say: Say
    account: str = ""
    """The account of the runs; empty: the first of the usual accounts that exists."""
    connection: Connection | None = None
    tests_dataset: bool = False
    """True if a pod lists dataset_uri."""
    tests_model: bool = False
    """True if a pod writes to model_uri."""
    with_pods: bool = True
    _is_unreachable: bool = False

    def __post_init__(self) -> None:
        self.api.retry_seconds = min(self.api.retry_seconds, RETRY_SECONDS)

    @cached_property
    def cluster(self) -> Cluster:
        return Cluster(self.api)

    @cached_property
    def served(self) -> list[Launcher]:
        return self.cluster.launchers(self.parameters.framework)

    @cached_property
    def launcher(self) -> Launcher:
        """The launcher of the training; that of manifests for auto, if the cluster does not say what it has."""
        with contextlib.suppress(KubetrainError):
            return taken(Launcher(self.parameters.launcher), [] if self._is_unreachable else self.served)
        return Launcher.TRAINING_OPERATOR

    @cached_property
    def _planned(self) -> tuple[list[Manifest], str]:
        """The manifests of the run, and the reason that its launcher cannot run it, if so."""
        try:
            return planned_manifests(replace(self.parameters, launcher=self.launcher)), ""
        except InvalidSetting as error:
            return planned_manifests(replace(self.parameters, launcher=Launcher.AUTO)), str(error)

    @cached_property
    def needs(self) -> Needs:
        return Needs.of(self._planned[0])

    def findings(self) -> Iterator[Finding]:
        try:
            yield self._server().named("cluster")
        except KubetrainError as error:
            yield cluster_missing(error)
            return
        for check, find in self._checks():
            yield self._run_check(check, find)
        from_pods = list(self._pod_findings())
        yield from from_pods
        s3 = next((pod.status for pod in from_pods if pod.check == "S3 dataset"), Status.SKIPPED)
        of_steps = {name: NeededSecret(pulls_images=True) for name in images.PULL_SECRETS}
        for name, needed in {**self.needs.secrets, **of_steps}.items():
            yield self._run_check(f"secret {name}", partial(self._secret, name, needed, s3))
        # Last, because the API server seems to be down if the service of Kubeflow Pipelines has no pods.
        yield self._run_check("Kubeflow Pipelines", partial(check_pipelines, self.cluster, self.connection))

    def _checks(self) -> Iterator[tuple[str, Callable[[], Finding]]]:
        yield "launcher", self._launcher
        if self.launcher is Launcher.TRAINING_OPERATOR:
            yield "training operator", lambda: installed.judge_operator(self.cluster.operator)
            yield "init container", self._init_container
        if self.launcher is Launcher.TRAINER:
            yield "trainer", self._trainer
        yield "namespace", self._namespace
        yield "account", self._account
        for file in (permissions.NEEDED, *permissions.OPTIONAL):
            yield f"permissions: {file.removesuffix('.yaml').replace('_', ' ')}", partial(self._permissions, file)
        for pods in self.needs.pods:
            yield f"admission: {pods.stage} {pods.role.lower()}", partial(self._admission, pods)
        yield "admission: launch step", self._launch_step
        yield "Istio", self._istio
        yield "queue", self._queue
        if self.needs.etcd:
            yield "etcd queue", self._etcd_queue
        yield "quota", self._quota
        yield "nodes", self._nodes
        yield "storage class", self._storage_class
        for wanted in wanted_claims(self.parameters):
            yield f"{wanted.purpose} PVC", partial(self._claim, wanted)
        yield from [("exposure", self._exposure)] if self.parameters.syncs else []
        if folder := self.parameters.data_in_place:
            judge = partial(data.judge_data_claim, folder.claim)
            yield "data PVC", lambda: judge(self.cluster.claim(folder.claim), self.cluster.namespace)

    def _run_check(self, check: str, find: Callable[[], Finding]) -> Finding:
        """Return the finding of one check. After an outage of the server, make no other checks."""
        if self._is_unreachable:
            return unknown(UNREACHABLE).named(check)
        try:
            return find().named(check)
        except Exception as error:  # noqa: BLE001 - an odd object, or a fault of a check, must not hide other findings
            self._is_unreachable = isinstance(error, Unreachable)
            return not_made(error).named(check)

    def _server(self) -> Finding:
        version = (self.cluster.get("/version") or {}).get("gitVersion")
        if not version:
            raise KubernetesError("the server in your KUBECONFIG is not a Kubernetes API server: correct its address")
        return installed.judge_kubernetes(version, self.parameters)

    def _launcher(self) -> Finding:
        run = self.parameters
        return judge_launcher(Launcher(run.launcher), self.served, run.framework, self._planned[1])

    def _trainer(self) -> Finding:
        return judge_trainer(self.cluster.trainer, self.cluster.train_job_fields(), self.cluster.groups)

    def _init_container(self) -> Finding:
        operator = self.cluster.operator
        if operator is None:
            return unknown("the training operator is not deployed")
        name, namespace = installed.template_config_map(operator), operator["metadata"]["namespace"]
        config_map = self.cluster.get(f"/api/v1/namespaces/{namespace}/configmaps/{name}") if name else None
        return installed.judge_init_container(
            operator,
            ((config_map or {}).get("data") or {}).get(installed.TEMPLATE_FILE),
            is_restricted=self.cluster.labels().get(ENFORCED) == "restricted",
            is_needed=self.needs.has_workers_beside_master,
        )

    def _namespace(self) -> Finding:
        name = self.cluster.namespace
        if self.cluster.own_namespace is None:
            return missing(f"namespace {name} does not exist", f"kubectl create namespace {name}")
        level = self.cluster.labels().get(ENFORCED, "with the cluster's default level")
        return ok(f"{name} enforces Pod Security {level}")

    @property
    def _account_name(self) -> str:
        return self.account or self.cluster.default_account

    def _account(self) -> Finding:
        exists = self.cluster.account(self._account_name) is not None
        return permissions.judge_account(self._account_name, self.cluster.namespace, exists)

    def _permissions(self, file: str) -> Finding:
        has_etcd = bool(self.needs.etcd)
        calls = permissions.calls_of(file, self.cluster.groups, self.launcher, self.served, has_etcd=has_etcd)
        namespace, account = self.cluster.namespace, self._account_name
        try:
            allowed = {call: self.cluster.review(*permissions.review_of(call, namespace, account)) for call in calls}
        except Forbidden as obstacle:
            own = {call: self.cluster.review(*permissions.self_review_of(call, namespace)) for call in calls}
            return permissions.judge_own_permissions(own, account, str(obstacle))
        return permissions.judge_permissions(file, allowed, account, namespace)

    def _admission(self, pods: Pods) -> Finding:
        created = self._dry_run(pods.template["metadata"], pods.spec)
        return ok("the cluster would create this pod") if isinstance(created, dict) else created

    def _launch_step(self) -> Finding:
        created = self._dry_run({}, launch_step_spec(self._account_name, self.parameters.components_image))
        if isinstance(created, Finding):
            return judge_refused_launch_step(created, self.cluster.namespace)
        return judge_launch_step(created, self.cluster.namespace)

    def _dry_run(self, metadata: Manifest, spec: Manifest) -> Manifest | Finding:
        """Return the pod as the server would create it, or the finding of its refusal."""
        named = {**metadata, "generateName": "kubetrain-doctor-"}
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": named, "spec": {"restartPolicy": "Never", **spec}}
        try:
            return self.api.create(self.api.path("v1", "pods"), pod, dryRun="All")
        except (Forbidden, Unauthorized, Unreachable):
            raise
        except KubernetesError as refusal:
            return admission.judge_refusal(str(refusal), self.cluster.namespace)

    def _istio(self) -> Finding:
        return installed.judge_istio(self.cluster.labels(), is_wanted=installed.wants_istio(self.parameters.placement))

    def _queue(self) -> Finding:
        placement = self.parameters.placement
        if placement.scheduler == "kueue":
            return self._kueue(placement.queue)
        if self.launcher is not Launcher.TRAINING_OPERATOR:
            return skipped(f"launcher {self.launcher} has no queue but Kueue's: --set pods.scheduler=kueue")
        if placement.scheduler:
            return queues.judge_gang(placement, self.cluster.groups, self.cluster.operator)
        return queues.judge_no_queue(self.cluster.operator)

    def _kueue(self, queue: str) -> Finding:
        version = self.cluster.groups.get(queues.KUEUE, "")
        group = f"{queues.KUEUE}/{version}"
        path = f"/apis/{group}/clusterqueues"
        cluster_queues = self.cluster.if_allowed(lambda: self.cluster.objects(path)) if version else []
        settings = self.cluster.if_allowed(lambda: self.cluster.get(queues.KUEUE_SETTINGS))
        return queues.judge_kueue(
            queue,
            self.cluster.namespace,
            self.cluster.get_in_namespace(group, "localqueues", queue) if version else None,
            [item["metadata"]["name"] for item in cluster_queues or []],
            version,
            settings,
            queues.framework_of(self.launcher.kind(self.parameters.framework)),
        )

    def _etcd_queue(self) -> Finding:
        group = f"{queues.KUEUE}/{self.cluster.groups.get(queues.KUEUE, '')}"
        is_installed = queues.KUEUE in self.cluster.groups
        default = self.cluster.get_in_namespace(group, "localqueues", queues.DEFAULT) if is_installed else None
        return queues.judge_etcd_queue(default)

    def _quota(self) -> Finding:
        quotas, claims = self.cluster.objects(self.api.path("v1", "resourcequotas")), self._made_claims()
        return capacity.judge_quota(quotas, self.needs, claims, self.cluster.namespace)

    def _nodes(self) -> Finding:
        nodes = self.cluster.objects("/api/v1/nodes")
        return capacity.judge_nodes(nodes, self.needs.training, can_grow=self.cluster.can_grow())

    def _storage_class(self) -> Finding:
        wanted, classes = self.parameters.storage.storage_class, self.cluster.storage_classes
        return data.judge_storage_class(wanted, classes, is_needed=bool(self._new_claims()))

    def _claim(self, wanted: WantedClaim) -> Finding:
        classes = self.cluster.if_allowed(lambda: self.cluster.storage_classes) or []
        return data.judge_claim(wanted, self.cluster.claim(wanted.name), self.cluster.namespace, classes)

    def _exposure(self) -> Finding:
        storage = self.parameters.storage
        if storage.exposure == ExposureMode.STATIC and self.cluster.claim(storage.static_claim) is None:
            return data.no_static_claim(storage.static_claim, self.cluster.namespace)
        return data.judge_exposure(*self._requested_exposure)

    @cached_property
    def _requested_exposure(self) -> tuple[ExposureRequest, StorageFacts]:
        storage = self.parameters.storage
        claim = self.cluster.claim(storage.staging_claim) or storage.staging.manifest()
        return storage.exposure_of(self.parameters.dataset_uri), storage_facts(self.cluster, claim)

    def _made_claims(self) -> list[Manifest]:
        """Return the PVCs that the run creates, also the one by which pods read a new version."""
        with contextlib.suppress(CannotExpose):
            if self.parameters.syncs and (exposure := plan_exposure(*self._requested_exposure)).creates_claim:
                return [*self._new_claims(), exposure.manifest()]
        return self._new_claims()

    def _secret(self, name: str, needed: NeededSecret, s3: Status) -> Finding:
        found = self.cluster.get_in_namespace("v1", "secrets", name)
        keys = None if found is None else frozenset(found.get("data") or {})  # only the keys are kept
        sources = transfer_placement(self.parameters).main.get("envFrom") or []
        if any((source.get("secretRef") or {}).get("name") == name for source in sources):
            return data.judge_s3_secret(name, keys, self.cluster.namespace, s3)
        return data.judge_secret(name, needed, keys, self.cluster.namespace)

    def _pod_findings(self) -> Iterator[Finding]:
        s3_tests = self._s3_tests()
        if self._is_unreachable:
            yield unknown(UNREACHABLE).named("pods")
        elif not self.with_pods:
            yield skipped("not requested: --no-pods").named("pods")
        else:
            yield from self._run_probes(s3_tests)
        for name, setting in (("dataset", "data.uri"), ("model", "model.uri")):
            if name not in s3_tests and not (name == "dataset" and self.parameters.data_in_place):
                yield skipped(f"not requested: --set {setting}=s3://BUCKET/PREFIX").named(f"S3 {name}")

    def _run_probes(self, s3_tests: dict[str, list[str]]) -> list[Finding]:
        try:
            planned = plan_probes(self.cluster, self.parameters, self._account_name, s3_tests)
            return list(judge_outcomes(planned, probes.run_probes(planned, self.api, self.say)))
        except Exception as error:  # noqa: BLE001 - as for the other checks
            return [not_made(error).named("pods")]

    def _s3_tests(self) -> dict[str, list[str]]:
        """Return the arguments of the tests in pod_program.py, by name."""
        run, tests = self.parameters, {}
        if self.tests_dataset:
            tests["dataset"] = [run.dataset_uri, run.s3_endpoint, run.dataset_access, run.train_config.data]
        if self.tests_model:
            tests["model"] = [run.model_uri, run.s3_endpoint]
        return tests

    def _new_claims(self) -> list[Manifest]:
        return [claim for claim in self.needs.claims if self.cluster.claim(claim["metadata"]["name"]) is None]
