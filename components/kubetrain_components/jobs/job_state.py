"""The state of a job and its pods while it runs: plain values that every backend can tell."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.troubles import Trouble


@dataclass(frozen=True, kw_only=True)
class PodTimes:
    created: float
    scheduled: float = 0.0
    """Time when it got a node, whose GPUs it holds from then on; 0: never, or unknown."""
    started: float = 0.0
    """First start of its main container; 0: never, or unknown."""
    restarted: tuple[float, ...] = ()
    """Known starts of that container after the first."""
    ended: float = 0.0
    """0: it still runs, or the end is unknown."""
    was_disrupted: bool = False
    """True if the cluster, or a queue, took the pod."""
    gpus: float = 0.0
    cpus: float = 0.0
    """CPUs that it requests."""


@dataclass(frozen=True, kw_only=True)
class JobTimes:
    """The times of all attempts of one stage of a run. Pods that were deleted before anyone looked are missing."""

    created: float = 0.0
    """Creation of the first job; 0: unknown."""
    pods: tuple[PodTimes, ...] = ()


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
    was_deleted: bool = False
    """True if somebody deleted the pod before it ended. Controllers also delete pods of jobs that have failed."""
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
    started: float = 0.0
    """Time when the newest container started; 0: none has."""
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
    succeeds_with_any: bool = False
    """True if the job reports success as soon as one of its pods succeeds, as elastic PyTorchJobs do."""
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
            return self.phase is Phase.SUCCEEDED and not self.has_succeeded_early
        is_blocked = any(pod.blocks_the_end or pod.has_led_to_success for pod in self.pods)
        have_succeeded = all(pod.phase is Phase.SUCCEEDED and not pod.is_terminating for pod in self.pods)
        return is_blocked or (self.is_under_way and have_succeeded)

    @property
    def has_succeeded_early(self) -> bool:
        """True if the job reports the success of its lead while other pods still work, or that of another pod of an
        elastic job while rank 0 does, which may write the model."""
        working = [pod for pod in self.pods if pod.phase is Phase.RUNNING and not pod.is_terminating]
        if self.handle.kind.traits.succeeds_with_lead:
            return bool(working)
        return self.succeeds_with_any and any(pod.is_first for pod in working)

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
    is_hidden: bool = False
    """True if the line is kept in case the pod fails, but not shown: the pod is one of many alike."""
