"""The requirements of a run, read from the manifests that it would create. Pure functions."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from kubetrain_components.jobs.etcd_settings import ETCD_STAGE
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.pod_counts import max_pods, needed_pods, replica_specs
from kubetrain_components.manifest import Manifest
from kubetrain_components.run.stages import TRAIN
from kubetrain_pipelines.doctor import admission
from kubetrain_pipelines.jobs.pod_resources import Amounts, resources_of

OBJECTS = {
    JobKind.PYTORCH_JOB: ("pytorchjobs.kubeflow.org",),
    JobKind.TF_JOB: ("tfjobs.kubeflow.org",),
    JobKind.TRAIN_JOB: (
        "trainjobs.trainer.kubeflow.org",
        "trainingruntimes.trainer.kubeflow.org",
        "jobsets.jobset.x-k8s.io",
        "jobs.batch",
        "services",
    ),
    JobKind.BATCH_JOB: ("jobs.batch", "services"),
    JobKind.RAY_JOB: ("rayjobs.ray.io", "rayclusters.ray.io", "jobs.batch", "services"),
}
"""The objects of a training of each kind, by their names in quotas."""
OF_ETCD = ("jobs.batch", "services")


@dataclass(frozen=True)
class Pods:
    """The identical pods of one role."""

    stage: str
    role: str
    count: int
    """Number of those that the run cannot do without."""
    template: Manifest
    most: int = 0
    """Number to which an elastic training may grow; 0: no more than count."""

    @property
    def spec(self) -> Manifest:
        spec: Manifest = self.template["spec"]
        return spec

    def resources(self, kind: str = "requests") -> Amounts:
        """Return the requests or limits of one pod."""
        return resources_of(self.spec, kind)


@dataclass(frozen=True)
class NeededSecret:
    keys: frozenset[str] = frozenset()
    """Empty: any keys."""
    is_optional: bool = False
    pulls_images: bool = False


@dataclass(frozen=True)
class Needs:
    claims: tuple[Manifest, ...]
    pods: tuple[Pods, ...]
    kind: JobKind
    """The kind of the training job."""
    secrets: Mapping[str, NeededSecret] = field(default_factory=dict)

    @classmethod
    def of(cls, manifests: Iterable[Manifest]) -> "Needs":
        manifests = list(manifests)
        pods = tuple(item for manifest in manifests for item in _pods_of(manifest, manifests))
        return cls(
            claims=tuple(manifest for manifest in manifests if manifest["kind"] == "PersistentVolumeClaim"),
            pods=pods,
            kind=next(JobKind(manifest["kind"]) for manifest in manifests if _stage_of(manifest) == TRAIN.name),
            secrets=_secrets_of(pods),
        )

    @property
    def training(self) -> list[Pods]:
        return [pods for pods in self.pods if pods.stage == TRAIN.name]

    @property
    def etcd(self) -> list[Pods]:
        """The pod of the training's own etcd, if it has one."""
        return [pods for pods in self.pods if pods.stage == ETCD_STAGE]

    @property
    def has_workers_beside_master(self) -> bool:
        return {"Master", "Worker"} <= {pods.role for pods in self.training}

    def peak(self) -> dict[str, Decimal]:
        """Return what the training and its launch step use, by the names in quotas; no stage uses more."""
        total: dict[str, Decimal] = defaultdict(Decimal, admission.LAUNCH_STEP_QUOTA)
        for pods in (*self.training, *self.etcd):
            total["pods"] += pods.count
            for kind in ("requests", "limits"):
                for name, value in pods.resources(kind).items():
                    total[f"{kind}.{name}"] += value * pods.count
        for resource in (*OBJECTS[self.kind], *(OF_ETCD if self.etcd else ())):
            total[f"count/{resource}"] += 1
        # Quotas also accept these shorter names.
        return {
            **total,
            "cpu": total["requests.cpu"],
            "memory": total["requests.memory"],
            "services": total["count/services"],
            "count/pods": total["pods"],
            "count/jobs.batch": total["count/jobs.batch"] + 1,  # that of the transfer, which has ended
        }


def _stage_of(manifest: Manifest) -> str:
    return str(manifest["metadata"].get("annotations", {}).get("kubetrain/stage", ""))


def _pods_of(manifest: Manifest, manifests: Iterable[Manifest]) -> list[Pods]:
    return [
        Pods(
            _stage_of(manifest),
            role,
            min(each.get("replicas", 1), needed_pods(kind, manifest)),
            each.get("template") or _template(manifest, manifests),
            max_pods(kind, manifest) if needed_pods(kind, manifest) < max_pods(kind, manifest) else 0,
        )
        for kind in JobKind
        if manifest["kind"] == kind
        for role, each in replica_specs(kind, manifest).items()
    ]


def _template(train_job: Manifest, manifests: Iterable[Manifest]) -> Manifest:
    """Return the template of a TrainJob's pods, which its runtime has."""
    name = train_job["spec"]["runtimeRef"]["name"]
    runtime = next(
        manifest for manifest in manifests if manifest["metadata"]["name"] == name and "mlPolicy" in manifest["spec"]
    )
    (nodes,) = runtime["spec"]["template"]["spec"]["replicatedJobs"]
    template: Manifest = nodes["template"]["spec"]["template"]
    return template


def _secrets_of(pods: Iterable[Pods]) -> dict[str, NeededSecret]:
    found: dict[str, NeededSecret] = {}
    for spec in (pod.spec for pod in pods):
        for name, needed in _named_secrets(spec):
            known = found.get(name, needed)
            found[name] = NeededSecret(
                known.keys | needed.keys, known.is_optional and needed.is_optional, known.pulls_images
            )
    return found


def _named_secrets(spec: Manifest) -> Iterable[tuple[str, NeededSecret]]:
    for container in (*(spec.get("initContainers") or []), *spec["containers"]):
        for each in container.get("envFrom") or []:
            if source := each.get("secretRef"):
                yield source["name"], NeededSecret(is_optional=source.get("optional", False))
        for each in container.get("env") or []:
            if source := (each.get("valueFrom") or {}).get("secretKeyRef"):
                yield source["name"], NeededSecret(frozenset({source.get("key", "")}), source.get("optional", False))
    for volume in spec.get("volumes") or []:
        if source := volume.get("secret"):
            keys = frozenset(item["key"] for item in source.get("items") or [])
            yield source["secretName"], NeededSecret(keys, source.get("optional", False))
    for secret in spec.get("imagePullSecrets") or []:
        yield secret["name"], NeededSecret(pulls_images=True)
