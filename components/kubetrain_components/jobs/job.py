"""A job, its identity, and its state while it runs: plain values that every backend understands."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, is_dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import Any, Self

from kubetrain_components.jobs.etcd_settings import ETCD_BACKEND
from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS, MPI, JobKind
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.troubles import Trouble
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings import DEFAULTS_VERSION, changed_fields

LABEL_PREFIX = "kubetrain/"
MANAGED_BY = {"app.kubernetes.io/managed-by": "kubetrain"}
"""Label of everything that kubetrain creates on a cluster."""
UNBUFFERED = {"PYTHONUNBUFFERED": "1"}
"""Environment of every Python program in a pod, whose log is followed while it runs."""
VERDICT_ANNOTATION, SUCCEEDED, FAILED = LABEL_PREFIX + "verdict", "succeeded", "failed"
FAILURE_ANNOTATION = LABEL_PREFIX + "failure"
"""The reason for which the launcher ended the job."""
RESULT_ANNOTATION = LABEL_PREFIX + "result"
"""Termination message of a job's lead pod, kept here because the pod may be deleted."""
PROGRESS_ANNOTATION = LABEL_PREFIX + "progress"
SECONDS_RUNNING_ANNOTATION = LABEL_PREFIX + "seconds-running"
"""Time that counts for deadline_seconds, written with the progress for a launcher that restarts."""
LOG_POSITION_ANNOTATION = LABEL_PREFIX + "log-position"
LEFT_ANNOTATION = LABEL_PREFIX + "left-at"
"""Time at which a launcher left the job without its run, for the reaper."""
TTL_ANNOTATION = LABEL_PREFIX + "ttl-seconds"
"""Time that the finished job is kept, for the reaper, if nothing in the cluster deletes such a job."""
# A name of these parts, with the attempt, role and index of a pod, has at most 63 characters.
NAME_PART_LENGTH = 16
RUN_PREFIX_LENGTH = 4
RUN_HASH_LENGTH = 8
LABEL_LENGTH = 63


class RestartPolicy(StrEnum):
    ALWAYS = "Always"
    ON_FAILURE = "OnFailure"
    NEVER = "Never"
    EXIT_CODE = "ExitCode"


class Phase(StrEnum):
    """The phase of a job or a pod."""

    SUSPENDED = "Suspended"
    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def is_final(self) -> bool:
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclass(frozen=True, kw_only=True)
class JobIdentity:
    """A job's stage and run. Its name depends on nothing else, so that a restarted launcher finds the job."""

    pipeline: str
    stage: str
    run_id: str
    dataset: str = ""
    attempt: int = 1

    @property
    def name(self) -> str:
        parts = [
            slug(self.pipeline, NAME_PART_LENGTH),
            slug(self.stage, NAME_PART_LENGTH),
            slug(self.run_id, RUN_PREFIX_LENGTH),  # for readers; the hash distinguishes runs
            hashlib.sha256(self.run_id.encode()).hexdigest()[:RUN_HASH_LENGTH],
            f"a{self.attempt}" if self.attempt > 1 else "",
        ]
        return "-".join(part for part in parts if part)

    def labels(self, spec_hash: str) -> dict[str, str]:
        values = {
            "run-id": self.run_id,
            "pipeline": self.pipeline,
            "stage": self.stage,
            "dataset": self.dataset,
            "spec-hash": spec_hash,
        }
        return {LABEL_PREFIX + key: slug(value, LABEL_LENGTH) for key, value in values.items() if value}

    def annotations(self) -> dict[str, str]:
        """Return the full values, of which labels take only slugs."""
        values = {"run-id": self.run_id, "pipeline": self.pipeline, "stage": self.stage, "dataset": self.dataset}
        return {LABEL_PREFIX + key: value for key, value in values.items() if value}

    @property
    def selector(self) -> str:
        """The labels of all attempts of this run's stage."""
        labels = self.labels("")
        return ",".join(f"{key}={labels[key]}" for key in (LABEL_PREFIX + "run-id", LABEL_PREFIX + "stage"))

    def next_attempt(self) -> Self:
        return replace(self, attempt=self.attempt + 1)

    def has_attempt(self, name: str) -> bool:
        """Return True if a job of this name is an attempt of this stage and run."""
        return re.fullmatch(rf"{re.escape(replace(self, attempt=1).name)}(-a\d+)?", name) is not None

    def newest_of(self, names: Iterable[str]) -> Self:
        """Return the newest attempt among these names of jobs, or this one if they name no later attempt."""
        first = re.escape(replace(self, attempt=1).name)
        matches = (re.fullmatch(rf"{first}-a(\d+)", name) for name in names)
        return replace(self, attempt=max([self.attempt, *(int(match[1]) for match in matches if match)]))


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

    def __post_init__(self) -> None:
        for role in [replica.role for replica in self.replicas if replica.count < 1]:
            raise InvalidSetting(f"{self.identity.name}: role {role} needs at least one replica: add one, or omit it")

    @property
    def spec_hash(self) -> str:
        """The hash of the job without its identity: it is the same for every attempt of one launch.

        It covers only what differs from the defaults, so that a launcher of a release with more settings still
        recognizes its job.
        """
        spec = {name: value for name, value in _spec(self).items() if name != "identity"}
        return hashlib.sha256(json.dumps([DEFAULTS_VERSION, spec], sort_keys=True).encode()).hexdigest()[:16]

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

    def pods(self) -> tuple["PodState", ...]:
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
        return self.trains_with == MPI

    @property
    def is_indexed(self) -> bool:
        """True if Kubernetes numbers the pods, and no operator knows their roles."""
        return bool(self.framework)

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


@dataclass(frozen=True, kw_only=True)
class JobHandle:
    """One job of a backend. A job that is created later under the same name has a different handle."""

    kind: JobKind
    name: str
    uid: str


@dataclass(frozen=True, kw_only=True)
class PodState:
    role: str
    index: int
    phase: Phase
    restarts: int = 0
    exit_code: int | None = None
    """Exit code of the newest container that ended; 128 plus the signal's number if a signal killed it."""
    last_words: str = ""
    """Termination message of that container."""
    cause: str = ""
    """The reason that it ended, as far as the cluster reports it: out of memory, evicted, node lost."""
    was_disrupted: bool = False
    """True if the cluster caused the end: a node was drained or lost, or the pod was preempted."""
    is_lost: bool = False
    """True if the cluster took the pod, or its node does not respond, and no replacement runs yet."""
    replacements: int = 0
    """Number of the restarts that replaced a pod which the cluster took."""
    is_terminating: bool = False
    """True if the cluster ends its containers, after a grace period: it disrupts the pod, or a person deletes it."""
    lingering: tuple[str, ...] = ()
    """Names of the containers that still run although the main one has ended."""
    finished: float = 0.0
    """Time when that container ended, in seconds since the epoch; 0: none has ended."""
    image_id: str = ""
    """ID of the image that the container runs, as the cluster reports it."""

    @property
    def name(self) -> str:
        return f"{self.role.lower()}-{self.index}"

    @property
    def is_first(self) -> bool:
        """True for the pod of rank 0, in which the others of an elastic job meet unless they do in etcd."""
        return self.index == 0

    @property
    def blocks_the_end(self) -> bool:
        """True if containers run on after the main one failed, and nothing ends them."""
        is_taken = self.was_disrupted or self.is_terminating or self.is_lost
        return self.phase is Phase.FAILED and bool(self.lingering) and not is_taken

    @property
    def has_led_to_success(self) -> bool:
        """True for a Launcher of MPI whose mpirun has succeeded, although a container beside it still runs."""
        return self.role == "Launcher" and self.phase is Phase.SUCCEEDED and bool(self.lingering)


@dataclass(frozen=True, kw_only=True)
class JobState:
    handle: JobHandle
    phase: Phase
    pods: tuple[PodState, ...] = ()
    needed: int = 0
    """Number of pods that must have started for the job to be under way; 0: all of them."""
    needs_first: bool = True
    """False if the others can train without the first pod, because they meet in etcd."""
    troubles: tuple[Trouble, ...] = ()
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    is_deleting: bool = False
    is_after_gap: bool = False
    """True if the job was not watched until this state: the time since the one before counts for no time limit."""

    @cached_property
    def is_under_way(self) -> bool:
        """True if enough of its pods have started: all of them, or those without which an elastic job cannot train."""
        return self.can_do_without(pod for pod in self.pods if pod.phase not in (Phase.RUNNING, Phase.SUCCEEDED))

    def can_do_without(self, pods: Iterable[PodState]) -> bool:
        """Return True if the others suffice for the job to be under way."""
        missing = list(pods)
        present = len(self.pods) - len(missing)
        is_first_missing = self.needs_first and any(pod.is_first for pod in missing)
        return present >= (self.needed or len(self.pods)) > 0 and not is_first_missing

    @property
    def late_pods(self) -> set[str]:
        """Names of the pods that an elastic job under way does not wait for."""
        return {pod.name for pod in self.pods if pod.phase is Phase.PENDING} if self.is_under_way else set()

    @cached_property
    def is_ending(self) -> bool:
        """True if the job reports success, or its main containers have ended although the job does not report it."""
        if self.phase.is_final:
            return self.phase is Phase.SUCCEEDED and not self._ended_early
        is_blocked = any(pod.blocks_the_end or pod.has_led_to_success for pod in self.pods)
        have_succeeded = all(pod.phase is Phase.SUCCEEDED and not pod.is_terminating for pod in self.pods)
        return is_blocked or (self.is_under_way and have_succeeded)

    @property
    def _ended_early(self) -> bool:
        """True if the job reports the success of its lead while other pods still work."""
        still_work = any(pod.phase is Phase.RUNNING and not pod.is_terminating for pod in self.pods)
        return self.handle.kind.traits.succeeds_with_lead and still_work

    @property
    def image_id(self) -> str:
        """The ID of the image that its pods run; empty if it is unknown."""
        return next((pod.image_id for pod in self.pods if pod.image_id), "")

    @cached_property
    def is_over(self) -> bool:
        return self.phase.is_final and all(pod.phase.is_final for pod in self.pods)


@dataclass(frozen=True)
class LogLine:
    pod: str
    text: str
    is_sampled: bool = False
    """True if the line is kept in case the pod fails, but not shown: the pod is not followed, or one of many alike."""


def _spec(value: Any) -> Any:
    """Convert a value for JSON, keeping only the fields of dataclasses that differ from their defaults."""
    if isinstance(value, tuple):
        return [_spec(each) for each in value]
    return {name: _spec(own) for name, own in changed_fields(value).items()} if is_dataclass(value) else value


def slug(text: str, length: int) -> str:
    """Return the text in the form that Kubernetes accepts in names and labels."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:length].strip("-")
