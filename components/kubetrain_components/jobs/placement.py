"""Placement: where and how a job's pods run, as one JSON object; manifests.py says what each field becomes."""

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from kubetrain_components.jobs.quantity import QUANTITY
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings import Settings, setting

QUANTITIES = ("cpu", "cpu_limit", "memory", "memory_limit", "shm_size")
NCCL_NAMES = re.compile(r"NCCL_[A-Z0-9_]+")
OBSOLETE_NCCL = {
    "NCCL_MIN_NRINGS": "is an old name of NCCL_MIN_NCHANNELS",
    "NCCL_TREE_THRESHOLD": "is read by no NCCL since 2.5: NCCL_ALGO chooses the algorithm",
}
SECRET_KEY = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+")


@dataclass(frozen=True, kw_only=True)
class Placement(Settings):
    CALLED: ClassVar[str] = "placement"

    image: str = setting("", "image of the pods; empty: the project's own")
    image_pull_policy: str = setting(
        "IfNotPresent", "when the image is pulled", choices=("IfNotPresent", "Always", "Never")
    )
    image_pull_secrets: list[Any] = setting([], "names of the secrets that images are pulled with")

    cpu: str = setting("1", "CPUs that a pod asks for; without GPUs its processes have so many threads together")
    cpu_limit: str = setting("", "CPUs that a pod may use at most; empty: all that are free")
    memory: str = setting("4Gi", "memory that a pod asks for; /dev/shm counts too")
    memory_limit: str = setting("", "memory that a pod may use at most; empty: what it asks for")
    gpus: int = setting(0, "GPUs of a pod", minimum=0)
    gpu_resource: str = setting("nvidia.com/gpu", "what the cluster calls a GPU")
    rdma: int = setting(
        0,
        "RDMA devices of a pod, which then runs as root, as others may not lock memory; where nodes let all, ask for "
        "devices by extra_resources",
        minimum=0,
    )
    rdma_resource: str = setting("rdma/rdma_shared_device_a", "what the cluster calls an RDMA device")
    extra_resources: dict[str, Any] = setting({}, "other resources of a pod and how much of each")
    shm_size: str = setting("1Gi", "size of /dev/shm, which loading processes and NCCL share data by")

    network: str = setting(
        "", "NCCL settings that suit this network; empty: none are set", choices=("", "ethernet", "infiniband")
    )
    nccl: dict[str, Any] = setting({}, 'NCCL settings of your own, such as {"NCCL_DEBUG": "INFO"}')
    host_network: bool = setting(False, "whether pods use their node's network, with ports of their own for each job")
    istio: bool = setting(False, "whether Istio may put its proxy into the pods, which never ends")

    node_selector: dict[str, Any] = setting({}, "labels that a node must have")
    affinity: dict[str, Any] = setting({}, "an affinity as Kubernetes writes it")
    together: str = setting(
        "", "keep all pods in one zone, or wherever nodes share the value of this label (topology.kubernetes.io/…)"
    )
    tolerations: list[Any] = setting([], "taints that pods bear, as Kubernetes writes them")
    spot: str = setting(
        "",
        "run on interruptible nodes, named and tainted as by this platform",
        choices=("", "gke", "eks", "aks", "karpenter"),
    )
    priority_class: str = setting("", "priority class of the pods")
    scheduler: str = setting(
        "",
        "who starts all pods or none; scheduler-plugins and volcano must be what the operator was started with",
        choices=("", "volcano", "scheduler-plugins", "kueue"),
    )
    queue: str = setting("", "queue of Volcano or Kueue")

    service_account: str = setting("", "account of the pods, for storage or S3; empty: they get no token")
    user: int = setting(65532, "numeric user and group of the pods, and the group of their volumes", minimum=1)
    env: dict[str, Any] = setting({}, "environment variables; an object is what Kubernetes calls valueFrom")
    secret_env: dict[str, Any] = setting({}, 'environment variables from secrets, such as {"TOKEN": "my-secret/token"}')
    env_secrets: list[Any] = setting([], "secrets all of whose keys become environment variables; one may be missing")
    volumes: list[Any] = setting([], "volumes as Kubernetes writes them")
    volume_mounts: list[Any] = setting([], "their mounts")
    labels: dict[str, Any] = setting({}, "labels of the pods")
    annotations: dict[str, Any] = setting({}, "annotations of the pods")

    scale_metrics: list[Any] = setting(
        [], "what an autoscaler sizes an elastic job by, as Kubernetes writes metrics; none: nothing does"
    )
    restart_policy: str = setting(
        "OnFailure",
        "which ends of a container are followed by a new start; ExitCode: those of 128 and more",
        choices=("OnFailure", "Always", "ExitCode", "Never"),
    )
    grace_seconds: int = setting(60, "time that a pod which is asked to end has to save a checkpoint", minimum=1)
    deadline_seconds: int = setting(0, "time that the job may run in all; 0: no limit", minimum=0)
    start_seconds: int = setting(1800, "time for all pods to be running: nodes may have to be made", minimum=1)
    queue_seconds: int = setting(0, "time that the job may wait in a queue; 0: no limit", minimum=0)
    ttl_seconds: int = setting(604800, "time after its end that the job can be looked at; 0: no limit", minimum=0)
    clean_pods: str = setting(
        "Running", "pods to delete when the verdict is known and all logs are read", choices=("Running", "All", "None")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        quantities = {name: getattr(self, name) for name in QUANTITIES} | self.extra_resources
        for name, value in quantities.items():
            if value and not QUANTITY.fullmatch(str(value)):
                raise InvalidSetting(f"{name} '{value}' is no Kubernetes quantity: write it like 500m, 4 or 16Gi")
        for name in self.nccl:
            _check_nccl(name)
        for name, source in self.secret_env.items():
            if not SECRET_KEY.fullmatch(str(source)):
                raise InvalidSetting(f"secret_env {name} must be SECRET/KEY, not '{source}'")
        if self.queue and self.scheduler not in ("volcano", "kueue"):
            raise InvalidSetting(f"queue '{self.queue}' is nobody's: set scheduler to volcano or kueue")
        if self.scheduler == "kueue" and not self.queue:
            raise InvalidSetting("scheduler kueue needs the name of a LocalQueue: set queue")

    def with_default_image(self, image: str) -> Self:
        return self if self.image else replace(self, image=image)

    def warnings(self) -> list[str]:
        """What is passed on though it has no effect, or not the one that was meant."""
        return [f"{name} {OBSOLETE_NCCL[name]}" for name in self.nccl if name in OBSOLETE_NCCL]


def _check_nccl(name: str) -> None:
    if name == "NCCL_TIMEOUT":
        raise InvalidSetting("NCCL_TIMEOUT is read by nobody: set nccl_timeout_seconds of the training")
    if not NCCL_NAMES.fullmatch(name):
        raise InvalidSetting(f"nccl takes names that begin with NCCL_, not '{name}': others belong in env")
