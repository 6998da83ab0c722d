"""Placement: where and how a job's pods run, as one JSON object. jobs/kubernetes/ turns it into manifests."""

import re
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from kubetrain_components.jobs.etcd_settings import check_rendezvous
from kubetrain_components.jobs.names import check_image, check_object_name
from kubetrain_components.jobs.quantity import QUANTITY, amount
from kubetrain_components.jobs.shapes import SHAPES, TEXTS, check_env, check_shape, check_texts
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import Settings, setting

OBJECTS = ("runtime_class", "priority_class", "queue", "service_account")
QUANTITIES = ("cpu", "cpu_limit", "memory", "memory_limit", "shm_size")
GPU = re.compile(r".+/(gpu|gpu\..+|mig-.+)|gpu\.intel\.com/.+")
"""Resource names of GPUs, including shared ones and MIG slices."""
PART_OF_GPU = re.compile(r".+/(gpu\..+|mig-.+)|gpu\.intel\.com/(?!i915$|xe$).+")
"""Names of what is only a part of a GPU: a process can use no more than one, or it is no device."""
NCCL_NAMES = re.compile(r"NCCL_[A-Z0-9_]+")
OBSOLETE_NCCL = {
    "NCCL_MIN_NRINGS": "is deprecated: use NCCL_MIN_NCHANNELS",
    "NCCL_TREE_THRESHOLD": "has no effect since NCCL 2.5: choose the algorithm with NCCL_ALGO",
}
WITHOUT_DEVICES: dict[str, Any] = {
    **{"gpus": 0, "rdma": 0, "extra_resources": {}, "resource_claims": [], "host_network": False},
    **{"init_containers": [], "extra_containers": [], "shard_cache": {}},
}
"""Settings of a pod that only tries something on a node for training."""
SECRET_KEY = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+")


@dataclass(frozen=True, kw_only=True)
class Placement(Settings):
    PARAMETER: ClassVar[str] = "placement"

    image: str = setting("", "image of the pods; empty: kubetrain's own")
    image_pull_policy: str = setting(
        "IfNotPresent", "when to pull the image", choices=("IfNotPresent", "Always", "Never")
    )
    image_pull_secrets: list[Any] = setting([], "names of the secrets for pulling images")

    cpu: str = setting("1", "CPU request of a pod; without GPUs also the number of threads of its processes together")
    cpu_limit: str = setting("", "CPU limit of a pod; empty: no limit")
    memory: str = setting("4Gi", "memory request of a pod, which includes /dev/shm")
    memory_limit: str = setting("", "memory limit of a pod; empty: the same as memory")
    gpus: int = setting(0, "GPUs of a pod", minimum=0)
    allow_idle_gpus: bool = setting(False, "allow fewer PyTorch processes than a pod has GPUs")
    gpu_resource: str = setting("nvidia.com/gpu", "resource name of a GPU in the cluster")
    rdma: int = setting(
        0,
        "RDMA devices of a pod, which then runs as root, because other users may not lock memory; if your nodes allow "
        "it to all users, request the devices with extra_resources",
        minimum=0,
    )
    rdma_resource: str = setting("rdma/rdma_shared_device_a", "resource name of an RDMA device in the cluster")
    extra_resources: dict[str, Any] = setting({}, "other resources of a pod and the amount of each")
    resource_claims: list[Any] = setting(
        [],
        "resource claims of a pod in Kubernetes' format (DRA), such as for GPUs; its main container uses all of them",
    )
    shm_size: str = setting("1Gi", "size of /dev/shm, through which data loader processes and NCCL share data")

    network: str = setting(
        "", "NCCL settings for this type of network; empty: none", choices=("", "ethernet", "infiniband")
    )
    nccl: dict[str, Any] = setting({}, 'your own NCCL settings, such as {"NCCL_DEBUG": "INFO"}')
    host_network: bool = setting(False, "use the network of the nodes, with different ports for each job")
    istio: bool = setting(False, "allow Istio to inject its sidecar, which keeps the pods from completing")

    node_selector: dict[str, Any] = setting({}, "labels that a node must have")
    affinity: dict[str, Any] = setting({}, "affinity in Kubernetes' format")
    together: str = setting(
        "", "keep all pods on nodes that share the value of this label (topology.kubernetes.io/…); zone: in one zone"
    )
    topology_spread: list[Any] = setting(
        [], "topology spread constraints in Kubernetes' format, for the job's own pods unless they select others"
    )
    runtime_class: str = setting(
        "",
        "RuntimeClass of the pods, such as nvidia on clusters where that is not the default runtime (K3s, RKE2, Talos)",
    )
    tolerations: list[Any] = setting([], "tolerations of the pods in Kubernetes' format")
    spot: str = setting(
        "",
        "run on spot nodes, with the labels and taints of this platform",
        choices=("", "gke", "eks", "aks", "karpenter"),
    )
    priority_class: str = setting("", "priority class of the pods")
    scheduler: str = setting(
        "",
        "gang scheduler, which starts all pods or none; for volcano and scheduler-plugins, start the training operator "
        "with the same one",
        choices=("", "volcano", "scheduler-plugins", "kueue"),
    )
    queue: str = setting("", "queue of Volcano or Kueue")
    scheduler_name: str = setting("", "scheduler that places each pod; empty: the cluster's default")

    service_account: str = setting("", "service account of the pods, for storage or S3; empty: they get no token")
    user: int = setting(65532, "numeric user and group of the pods, and group of their volumes", minimum=1)
    env: dict[str, Any] = setting({}, "environment variables; an object is Kubernetes' valueFrom")
    secret_env: dict[str, Any] = setting({}, 'environment variables from secrets, such as {"TOKEN": "my-secret/token"}')
    env_secrets: list[Any] = setting([], "secrets whose keys all become environment variables; they may be missing")
    volumes: list[Any] = setting([], "volumes in Kubernetes' format")
    volume_mounts: list[Any] = setting([], "volume mounts in Kubernetes' format")
    init_containers: list[Any] = setting(
        [], "init containers of training and evaluation in Kubernetes' format; with restartPolicy Always, sidecars"
    )
    extra_containers: list[Any] = setting(
        [], "other containers of training and evaluation in Kubernetes' format, which end by themselves"
    )
    code_container: dict[str, Any] = setting(
        {}, "init container that fetches your own code, and its volumes: --code sets it"
    )
    shard_cache: dict[str, Any] = setting(
        {}, "sidecar that fetches tar shards into a cache, and its volumes: data_access=cache sets it"
    )
    labels: dict[str, Any] = setting({}, "labels of the pods")
    annotations: dict[str, Any] = setting({}, "annotations of the pods")

    check_imports: bool = setting(True, "import a task of your own in a pod before the dataset is synced")
    scale_metrics: list[Any] = setting(
        [],
        "metrics in Kubernetes' format by which an autoscaler scales an elastic job from min_workers to max_workers; "
        "empty: no autoscaler",
    )
    rdzv_backend: str = setting(
        "c10d",
        "how the pods of an elastic job find each other; etcd-v2: through etcd instead of the first pod",
        choices=("c10d", "etcd-v2"),
    )
    rdzv_endpoint: str = setting(
        "", "your own etcd for etcd-v2, as HOST:PORT or https://HOST:PORT; empty: one that is created for each job"
    )
    rdzv_conf: dict[str, Any] = setting(
        {}, 'more rendezvous settings of torchrun, such as {"join_timeout": 900}, or the files for TLS to your etcd'
    )
    etcd_image: str = setting(
        "quay.io/coreos/etcd:v3.5.35", "image of the etcd that is created for a job; only 3.4 and 3.5 work"
    )
    restart_policy: str = setting(
        "OnFailure",
        "when to restart a container; ExitCode: if its exit code is 128 or higher",
        choices=("OnFailure", "Always", "ExitCode", "Never"),
    )
    max_restarts: int = setting(
        3,
        "restarts of the training at which it fails; pods that the cluster took do not count, and 10 minutes of new "
        "steps forgive all restarts",
        minimum=0,
    )
    grace_seconds: int = setting(60, "time that a terminating pod has to save a checkpoint", minimum=1)
    deadline_seconds: int = setting(0, "max total time that the job may run; 0: no limit", minimum=0)
    start_seconds: int = setting(
        1800,
        "max time until all pods (of an elastic job, min_workers) run, at first and each time that one is replaced",
        minimum=1,
    )
    queue_seconds: int = setting(0, "max time that the job may wait in a queue; 0: no limit", minimum=0)
    ttl_seconds: int = setting(604800, "time that a finished job is kept; 0: no limit", minimum=0)
    clean_pods: str = setting(
        "Running", "pods to delete after the verdict, when all logs have been read", choices=("Running", "All", "None")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, shape in SHAPES.items():
            check_shape(name, getattr(self, name), shape)
        for name in TEXTS:
            check_texts(name, getattr(self, name))
        check_env(self.env)
        _check_names(self)
        quantities = {name: getattr(self, name) for name in QUANTITIES} | self.extra_resources
        for name, value in quantities.items():
            if value and not QUANTITY.fullmatch(str(value)):
                raise InvalidSetting(f"{name} '{value}' is not a Kubernetes quantity: write it like 500m, 4 or 16Gi")
            if value and name in QUANTITIES and not amount(value):
                raise InvalidSetting(f"{name} is {value}: set more, or leave it empty")
        for name in ("cpu", "memory"):
            _check_limit(name, getattr(self, name), getattr(self, f"{name}_limit"))
        for name in self.nccl:
            _check_nccl(name)
        etcd = (self.rdzv_backend, self.rdzv_endpoint, self.etcd_image)
        check_rendezvous(*etcd, self.rdzv_conf, self.volumes, self.volume_mounts)
        for name, source in self.secret_env.items():
            if not SECRET_KEY.fullmatch(str(source)):
                raise InvalidSetting(f"secret_env {name} must be SECRET/KEY, not '{source}'")
        if self.queue and self.scheduler not in ("volcano", "kueue"):
            raise InvalidSetting(f"queue '{self.queue}' has no effect: set scheduler to volcano or kueue")
        if self.scheduler_name and self.scheduler in ("volcano", "scheduler-plugins"):
            raise InvalidSetting(
                f"scheduler {self.scheduler} places the pods itself: remove scheduler_name '{self.scheduler_name}'"
            )
        if self.scheduler == "kueue" and not self.queue:
            raise InvalidSetting("scheduler kueue needs a LocalQueue: set queue to its name")

    @property
    def has_gpus(self) -> bool:
        return self.gpus > 0 or any(is_gpu(name) for name in self.extra_resources)

    @property
    def gpu_count(self) -> int:
        """The whole GPUs that a pod requests by number; those of resource claims are not known."""
        others = ((name, number) for name, number in self.extra_resources.items() if is_gpu(name))
        requests = [(self.gpu_resource, self.gpus), *others]
        return sum(int(amount(str(number))) for name, number in requests if not PART_OF_GPU.fullmatch(name))

    def limit_of(self, cpu: str) -> str:
        """Return the limit of a small pod beside this one that requests these CPUs.

        It has one if this pod does, because a quota may demand that of every pod.
        """
        return self.cpu_limit and cpu

    def with_default_image(self, image: str) -> Self:
        return self if self.image else replace(self, image=image)

    def without_env(self, name: str) -> Self:
        return replace(self, env={each: value for each, value in self.env.items() if each != name})

    def warnings(self) -> list[str]:
        """Return a warning for each setting that has no effect, or not the expected one."""
        return [f"{name} {OBSOLETE_NCCL[name]}" for name in self.nccl if name in OBSOLETE_NCCL]


def is_gpu(resource: str) -> bool:
    return GPU.fullmatch(resource) is not None


def _check_names(placement: Placement) -> None:
    for setting_name in ("image", "etcd_image"):
        if image := getattr(placement, setting_name):
            check_image(setting_name, image)
    objects = [(name, getattr(placement, name)) for name in OBJECTS]
    secrets = [(name, secret) for name in ("env_secrets", "image_pull_secrets") for secret in getattr(placement, name)]
    for setting_name, name in (*objects, *secrets):
        if name:
            check_object_name(setting_name, name)


def _check_limit(name: str, request: str, limit: str) -> None:
    if request and limit and amount(limit) < amount(request):
        raise InvalidSetting(
            f"{name}_limit '{limit}' is less than {name} '{request}', which the pod requests: raise it, or lower {name}"
        )


def _check_nccl(name: str) -> None:
    if name == "NCCL_TIMEOUT":
        raise InvalidSetting("NCCL_TIMEOUT has no effect: set nccl_timeout_seconds of the training")
    if not NCCL_NAMES.fullmatch(name):
        raise InvalidSetting(f"nccl accepts only names that begin with NCCL_, not '{name}': set other variables in env")


def processes_in_pod(framework: str, wanted: int, placement: Placement) -> int:
    """Return the number of processes; for 0, one for each GPU, or one without GPUs.

    Raises:
        InvalidSetting: if the processes could not use the GPUs, or would leave some idle.
    """
    if framework != "pytorch":
        _check_single(framework, wanted)
        return 1
    gpus = placement.gpu_count
    if wanted > gpus > 0:
        raise InvalidSetting(
            f"processes_per_worker is {wanted}, but a pod has {gpus} GPUs, and each process needs its own: raise gpus, "
            "or leave processes_per_worker out"
        )
    if 0 < wanted < gpus and not placement.allow_idle_gpus:
        raise InvalidSetting(
            f"processes_per_worker is {wanted}, so {gpus - wanted} of a pod's {gpus} GPUs would be idle: leave it out "
            "to use all, lower gpus, or set allow_idle_gpus"
        )
    return wanted or max(1, gpus)


def _check_single(framework: str, wanted: int) -> None:
    if framework == "tensorflow" and wanted > 1:
        raise InvalidSetting(
            f"processes_per_worker is {wanted}, but a TensorFlow process uses every GPU of its pod: leave it out and "
            "raise workers"
        )
