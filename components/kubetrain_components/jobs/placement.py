"""Placement: where and how a job's pods run. jobs/kubernetes/ turns it into manifests."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from kubetrain_components.jobs.etcd_settings import check_rendezvous
from kubetrain_components.jobs.names import check_image, check_object_name
from kubetrain_components.jobs.pod_checks import check_env, check_pod, check_rdma, check_shape, check_texts
from kubetrain_components.jobs.pod_patch import MAIN, devices_in, merge, named, pod_patch, small_pod
from kubetrain_components.jobs.quantity import QUANTITY, amount
from kubetrain_components.manifest import Manifest, without_empty
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.base import Settings, setting

QUANTITIES = ("cpu", "memory", "shm_size")
GPU = re.compile(r".+/(gpu|gpu\..+|mig-.+)|gpu\.intel\.com/.+")
"""Resource names of GPUs, including shared ones and MIG slices."""
PART_OF_GPU = re.compile(r".+/(gpu\..+|mig-.+)|gpu\.intel\.com/(?!i915$|xe$).+")
"""Names of what is only a part of a GPU: a process can use no more than one, or it is not a device."""
NCCL_NAMES = re.compile(r"NCCL_[A-Z0-9_]+")
OBSOLETE_NCCL = {
    "NCCL_MIN_NRINGS": "is deprecated: use NCCL_MIN_NCHANNELS",
    "NCCL_TREE_THRESHOLD": "has no effect since NCCL 2.5: choose the algorithm with NCCL_ALGO",
}
ETCD_IMAGE = "quay.io/coreos/etcd:v3.5.35"


@dataclass(frozen=True, kw_only=True)
class Placement(Settings):
    GROUP: ClassVar[str] = "pods"

    image: str = setting("", "image of the pods; empty: kubetrain's own", in_form=True)
    pod: dict[str, Any] = setting(
        {},
        "patch of the pod template in Kubernetes' format, for what has no setting: labels and annotations, affinity, "
        "tolerations, priority, volumes, other containers and so on. The container that trains is named main",
    )
    cpu: str = setting(
        "1", "CPU request of a pod; without GPUs also the number of threads of its processes together", in_form=True
    )
    memory: str = setting("4Gi", "memory request of a pod, which includes /dev/shm", in_form=True)
    gpus: int = setting(0, "GPUs of a pod", minimum=0, in_form=True)
    gpu_resource: str = setting("nvidia.com/gpu", "resource name of a GPU in the cluster")
    rdma: dict[str, Any] = setting(
        {},
        'RDMA devices of a pod by resource name, such as {"rdma/rdma_shared_device_a": 1}; the pod then runs as root, '
        "because other users may not lock memory. If your nodes allow it to all users, request the devices in pods.pod",
    )
    shm_size: str = setting(
        "1Gi", "size of /dev/shm, through which data loader processes and NCCL share data", in_form=True
    )

    network: str = setting(
        "", "NCCL settings for this type of network; empty: none", choices=("", "ethernet", "infiniband")
    )
    nccl: dict[str, Any] = setting({}, 'your own NCCL settings, such as {"NCCL_DEBUG": "INFO"}')
    host_network: bool = setting(False, "use the network of the nodes, with different ports for each job")

    together: str = setting(
        "", "keep all pods on nodes that share the value of this label (topology.kubernetes.io/…); zone: in one zone"
    )
    spot: str = setting(
        "",
        "run on spot nodes, with the labels and taints of this platform",
        choices=("", "gke", "eks", "aks", "karpenter"),
    )
    scheduler: str = setting(
        "",
        "gang scheduler, which starts all pods or none; for volcano and scheduler-plugins, start the training operator "
        "with the same one",
        choices=("", "volcano", "scheduler-plugins", "kueue"),
    )
    queue: str = setting("", "queue of Volcano or Kueue")

    user: int = setting(65532, "numeric user and group of the pods, and group of their volumes", minimum=1)
    env: dict[str, Any] = setting({}, "environment variables; an object is Kubernetes' valueFrom")
    secret_env: dict[str, Any] = setting({}, 'environment variables from secrets, such as {"TOKEN": "my-secret/token"}')

    check_imports: bool = setting(True, "import a task of your own in a pod before the dataset is synced")
    scale_metrics: list[Any] = setting(
        [],
        "metrics in Kubernetes' format by which an autoscaler scales an elastic job from min_workers to max_workers; "
        "empty: no autoscaler",
    )
    rendezvous: dict[str, Any] = setting(
        {},
        'how the pods of an elastic job find each other, if not through the first of them: {"backend": "etcd-v2"} by '
        "an etcd of the job's own (image: one of version 3.4 or 3.5), with endpoint (HOST:PORT or https://HOST:PORT) "
        "by yours. Other options are torchrun's, such as join_timeout, or the files for TLS to your etcd",
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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pod(self.pod)
        check_env(self.env, self.secret_env)
        check_rdma(self.rdma)
        check_shape("pods.scale_metrics", self.scale_metrics, [{}])
        _check_names(self)
        for name in QUANTITIES:
            _check_quantity(f"pods.{name}", getattr(self, name))
        for name in ("cpu", "memory"):
            _check_limit(f"pods.{name}", getattr(self, name), str(self.limits.get(name, "")))
        check_texts("pods.nccl", self.nccl)
        for name in self.nccl:
            _check_nccl(name)
        check_texts("pods.rendezvous", self.rendezvous)
        etcd = (self.rdzv_backend, self.rdzv_endpoint, self.etcd_image)
        check_rendezvous(*etcd, self.rdzv_conf, self.spec.get("volumes") or [], self.main.get("volumeMounts") or [])
        if self.queue and self.scheduler not in ("volcano", "kueue"):
            raise InvalidSetting(f"pods.queue '{self.queue}' has no effect: set pods.scheduler to volcano or kueue")
        if (own := self.spec.get("schedulerName")) and self.scheduler in ("volcano", "scheduler-plugins"):
            raise InvalidSetting(
                f"pods.scheduler {self.scheduler} places the pods itself: remove schedulerName '{own}'"
            )
        if self.scheduler == "kueue" and not self.queue:
            raise InvalidSetting("pods.scheduler kueue needs a LocalQueue: set pods.queue to its name")

    @property
    def rdzv_backend(self) -> str:
        return str(self.rendezvous.get("backend", "c10d"))

    @property
    def rdzv_endpoint(self) -> str:
        return str(self.rendezvous.get("endpoint", ""))

    @property
    def etcd_image(self) -> str:
        """The image of the etcd that is created for a job."""
        return str(self.rendezvous.get("image", ETCD_IMAGE))

    @property
    def rdzv_conf(self) -> dict[str, Any]:
        """The options that torchrun reads."""
        return {name: value for name, value in self.rendezvous.items() if name not in ("backend", "endpoint", "image")}

    @classmethod
    def some_of(cls, values: Mapping[str, Any]) -> dict[str, Any]:
        given = super().some_of(values)
        check_pod(given.get("pod", {}))  # patches merge with others before they are part of a placement
        return given

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec of the pod patch."""
        return self.pod.get("spec") or {}

    @property
    def labels(self) -> Mapping[str, Any]:
        return (self.pod.get("metadata") or {}).get("labels") or {}

    @property
    def main(self) -> Mapping[str, Any]:
        """The patch of the container that trains."""
        return named(self.spec.get("containers"), MAIN)

    @property
    def limits(self) -> Mapping[str, Any]:
        return (self.main.get("resources") or {}).get("limits") or {}

    @property
    def init_containers(self) -> tuple[str, ...]:
        return tuple(container["name"] for container in self.spec.get("initContainers") or [])

    @property
    def devices(self) -> dict[str, Any]:
        """The devices that the pod patch requests, beside those of settings."""
        return devices_in(self.main)

    @property
    def has_gpus(self) -> bool:
        return self.gpus > 0 or any(is_gpu(name) for name in self.devices)

    @property
    def gpu_count(self) -> int:
        """The whole GPUs that a pod requests by number; those of resource claims are not known."""
        others = ((name, number) for name, number in self.devices.items() if is_gpu(name))
        requests = [(self.gpu_resource, self.gpus), *others]
        return sum(int(amount(str(number))) for name, number in requests if not PART_OF_GPU.fullmatch(name))

    def small_limits(self, cpu: str) -> dict[str, str]:
        """Return the limits of a small pod beside this one that requests these CPUs.

        It has one of CPUs if this pod does, because a quota may demand that of every pod.
        """
        return {"cpu": cpu} if "cpu" in self.limits else {}

    def small(self, cpu: str, keep: tuple[str, ...] = (), **settings: Any) -> Self:
        """Return the placement of a pod that only tries something on a node for training, without its devices.

        Args:
            keep: Init containers that it needs.
        """
        pod = small_pod(self.pod, self.small_limits(cpu), keep)
        return replace(self, **{"cpu": cpu, "gpus": 0, "rdma": {}, "host_network": False, "pod": pod, **settings})

    def any_pod(self, cpu: str, *fields: str) -> Manifest:
        """Return the patch of a pod elsewhere that requests these CPUs: what a cluster may demand of every pod.

        Args:
            fields: Other fields of the spec that it has in common with this one.
        """
        names = ("imagePullSecrets", "serviceAccountName", *fields)
        resources = without_empty({"limits": self.small_limits(cpu)})
        main = {"imagePullPolicy": self.main.get("imagePullPolicy", ""), "resources": resources}
        spec = {name: self.spec[name] for name in names if name in self.spec}
        return pod_patch(spec, main, **(self.pod.get("metadata") or {}))

    def patched(self, pod: Mapping[str, Any]) -> Self:
        """Return the placement with this patch over that of the user."""
        return replace(self, pod=merge(self.pod, pod))

    def based_on(self, pod: Manifest) -> Self:
        """Return the placement with this patch below that of the user."""
        return replace(self, pod=merge(pod, self.pod))

    def without_env(self, name: str) -> Self:
        return replace(self, env={each: value for each, value in self.env.items() if each != name})

    def warnings(self) -> list[str]:
        """Return a warning for each setting that has no effect, or not the expected one."""
        return [f"{name} {OBSOLETE_NCCL[name]}" for name in self.nccl if name in OBSOLETE_NCCL]


def is_gpu(resource: str) -> bool:
    return GPU.fullmatch(resource) is not None


def is_rdma(resource: str) -> bool:
    return resource.startswith("rdma/")


def _check_names(placement: Placement) -> None:
    for setting_name, image in (("pods.image", placement.image), ("pods.rendezvous.image", placement.etcd_image)):
        if image:
            check_image(setting_name, image)
    if placement.queue:
        check_object_name("pods.queue", placement.queue)


def _check_quantity(name: str, value: str) -> None:
    if value and not QUANTITY.fullmatch(value):
        raise InvalidSetting(f"{name} '{value}' is not a Kubernetes quantity: write it like 500m, 4 or 16Gi")
    if value and not amount(value):
        raise InvalidSetting(f"{name} is {value}: set more, or leave it empty")


def _check_limit(name: str, request: str, limit: str) -> None:
    if request and limit and amount(limit) < amount(request):
        raise InvalidSetting(
            f"the limit of {name} '{limit}' is less than {name} '{request}', which the pod requests: raise it, or "
            f"lower {name}"
        )


def _check_nccl(name: str) -> None:
    if name == "NCCL_TIMEOUT":
        raise InvalidSetting("NCCL_TIMEOUT has no effect: set train.nccl_timeout_seconds")
    if not NCCL_NAMES.fullmatch(name):
        raise InvalidSetting(
            f"pods.nccl accepts only names that begin with NCCL_, not '{name}': set others in pods.env"
        )


def processes_in_pod(framework: str, wanted: int, placement: Placement, entry: Mapping[str, Any]) -> int:
    """Return the number of processes; for 0, one for each GPU, or one without GPUs.

    Args:
        entry: The user's own program, whose processes may use several GPUs each; empty: kubetrain's own loop.

    Raises:
        InvalidSetting: if the processes could not use the GPUs, or would leave some idle.
    """
    if framework != "pytorch":
        _check_single(framework, wanted)
        return 1
    gpus = placement.gpu_count
    if wanted > gpus > 0:
        raise InvalidSetting(
            f"pods.processes is {wanted}, but a pod has {gpus} GPUs, and each process needs its own: raise pods.gpus, "
            "or leave pods.processes out"
        )
    if 0 < wanted < gpus and not entry:
        raise InvalidSetting(
            f"pods.processes is {wanted}, so {gpus - wanted} of a pod's {gpus} GPUs would be idle: leave it out to use "
            "all, or lower pods.gpus"
        )
    return wanted or max(1, gpus)


def _check_single(framework: str, wanted: int) -> None:
    if framework == "tensorflow" and wanted > 1:
        raise InvalidSetting(
            f"pods.processes is {wanted}, but a TensorFlow process uses every GPU of its pod: leave it out and raise "
            "pods.workers"
        )
