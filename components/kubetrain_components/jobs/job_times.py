"""When the jobs and pods of a run began and ended, as far as a backend knows, in seconds since the epoch."""

from dataclasses import dataclass


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
