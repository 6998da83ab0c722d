"""A job to launch: plain values that every backend understands."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from enum import StrEnum
from typing import Any

from kubetrain_components.jobs.etcd_settings import ETCD_BACKEND
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS, MPI, JobKind
from kubetrain_components.jobs.job_state import Phase, PodState
from kubetrain_components.jobs.placement import Placement
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.processes.code_folder import SAFE_PATH
from kubetrain_trainer.settings.base import changed_fields

MLFLOW_RUN = "MLFLOW_RUN_ID"
NOT_HASHED = ("identity", "metrics_port", "avoided_nodes", "seconds_running")
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""Environment of every Python program in a pod, whose log is followed while it runs."""
OWN_PROGRAM = {**UNBUFFERED, SAFE_PATH: "1"}
"""Environment of kubetrain's own programs in a pod."""


class RestartPolicy(StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


def restart_policy_of(placement: Placement, *, is_elastic: bool = False) -> RestartPolicy:
    """Return Never if no restart is allowed, which the kubelet would begin; the loss of a pod fails no elastic job."""
    return RestartPolicy(placement.restart_policy if placement.max_restarts or is_elastic else "Never")


@dataclass(frozen=True, kw_only=True)
class Replica:
    """The pods of one role, which are identical."""

    role: str
    count: int
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    restart_policy: RestartPolicy = RestartPolicy.ON_FAILURE


@dataclass(frozen=True, kw_only=True)
class ClaimMount:
    """A PVC, or a folder of it, that is mounted in every pod of a job."""

    claim: str
    path: str
    sub_path: str = ""
    read_only: bool = False


@dataclass(frozen=True, kw_only=True)
class Elastic:
    min_replicas: int
    max_replicas: int
    rdzv_backend: str = "c10d"
    rdzv_id: str = ""
    rdzv_conf: Mapping[str, str] = field(default_factory=dict)
    max_restarts: int | None = None
    metrics: tuple[Mapping[str, Any], ...] = ()
    """Metrics by which an autoscaler (HPA) scales the job between both numbers; empty: no autoscaler."""


@dataclass(frozen=True, kw_only=True)
class Job:
    identity: JobIdentity
    kind: JobKind
    replicas: tuple[Replica, ...]
    framework: str = ""
    """Framework of a training whose kind of job is not for one framework; empty: the kind's, or no training."""
    processes_per_replica: int = 1
    elastic: Elastic | None = None
    backoff_limit: int = 1
    """Number of container restarts at which the job fails; the operator treats 0 as 1."""
    placement: Placement = Placement()
    """Settings of its pods; ignored on one machine."""
    mounts: tuple[ClaimMount, ...] = ()
    """PVCs that its pods mount; empty on one machine, where pods use its folders."""
    metrics_port: int = 0
    """Port on which rank 0 of a training serves metrics, as its command says; 0: none."""
    avoided_nodes: tuple[str, ...] = ()
    """Nodes that earlier attempts found to be bad."""
    seconds_running: str = ""
    """Time that earlier attempts ran, which counts for deadline_seconds too."""

    def __post_init__(self) -> None:
        for role in [replica.role for replica in self.replicas if replica.count < 1]:
            raise InvalidSetting(f"{self.identity.name}: role {role} needs at least one replica: add one, or omit it")

    @property
    def spec_hash(self) -> str:
        """The hash of the job without its identity and the nodes that it avoids: it is the same for every attempt of
        one launch.

        It covers only what differs from the defaults, so that a launcher of a release with more settings still
        recognizes its job. The port of metrics is not covered, because the command names it, nor the MLflow run,
        because Kubeflow Pipelines may create another one when the step is retried.
        """
        same = replace(self, placement=self.placement.without_env(MLFLOW_RUN))
        spec = {name: value for name, value in _spec(same).items() if name not in NOT_HASHED}
        return hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def labels(self) -> dict[str, str]:
        return self.identity.labels(self.spec_hash)

    @property
    def total_replicas(self) -> int:
        return sum(replica.count for replica in self.replicas)

    @property
    def max_pods(self) -> int:
        return max(self.total_replicas, self.elastic.max_replicas if self.elastic else 0)

    @property
    def roles(self) -> dict[str, int]:
        return {replica.role: replica.count for replica in self.replicas}

    def pods(self) -> tuple[PodState, ...]:
        """Return the pods in their initial state."""
        return tuple(
            PodState(role=replica.role, index=index, phase=Phase.PENDING)
            for replica in self.replicas
            for index in range(replica.count)
        )

    @property
    def trains_with(self) -> str:
        """The framework of a training; empty if the job is none."""
        return self.framework or self.kind.traits.framework

    @property
    def is_training(self) -> bool:
        return bool(self.trains_with)

    @property
    def reports_checkpoint(self) -> bool:
        """True if rank 0 reports a checkpoint, which a later step can verify."""
        return self.is_training and self.trains_with not in COMMAND_FRAMEWORKS

    @property
    def lead_decides(self) -> bool:
        """True if the other pods only wait for the lead's orders, so that they never end by themselves."""
        return self.trains_with == MPI or self.kind is JobKind.RAY_JOB

    @property
    def is_indexed(self) -> bool:
        """True if Kubernetes numbers the pods, and no operator knows their roles."""
        return bool(self.framework) and not self.kind.traits.roles

    @property
    def meets_in_etcd(self) -> bool:
        """True if its pods find each other through etcd, so that the others continue without the first one."""
        return self.elastic is not None and self.placement.rdzv_backend == ETCD_BACKEND

    @property
    def lead_role(self) -> str:
        """The role of the pod that has rank 0."""
        lead = self.kind.traits.lead_role
        return lead if lead in self.roles else self.replicas[0].role

    @property
    def lead(self) -> str:
        """The name of the pod that has rank 0."""
        return f"{self.lead_role.lower()}-0"


def _spec(value: Any) -> Any:
    """Convert a value for JSON, keeping only the fields of dataclasses that differ from their defaults."""
    if isinstance(value, tuple):
        return [_spec(item) for item in value]
    return {name: _spec(own) for name, own in changed_fields(value).items()} if is_dataclass(value) else value
