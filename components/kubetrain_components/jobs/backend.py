"""The port to everything that runs jobs. Adapters report what happens; follow.py makes the decisions."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_state import JobHandle, JobState, JobTimes, LogLine
from kubetrain_components.jobs.launchers import Launcher


class JobBackend(Protocol):
    def launcher(self, wanted: Launcher, framework: str, identity: JobIdentity) -> tuple[Launcher, str]:
        """Return what runs a training here, and why: the one that is wanted, or the best for auto."""
        ...

    def find(self, job: Job) -> JobState | None:
        """Return the job of this kind and name, no matter which launcher created it; None if there is none."""
        ...

    def attempts(self, job: Job) -> Iterable[str]:
        """Return the names of this run's jobs for the same stage; earlier attempts may be gone."""
        ...

    def unended_pods(self, job: Job) -> list[str]:
        """Return the names of the pods of this run's jobs for the same stage that may still write."""
        ...

    def create(self, job: Job) -> JobHandle:
        """Start the job under the name of its identity.

        Raises:
            JobExists: if the name is taken.
        """
        ...

    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        """Yield the job's state: immediately, after each change, and at least every second; None once it is gone."""
        ...

    def read(self, handle: JobHandle) -> JobState | None:
        """Return the state at this moment, which watch may be behind; None if the job is gone."""
        ...

    def logs(self, handle: JobHandle, only: str = "") -> Iterator[LogLine]:
        """Yield every line of every pod from the beginning, across restarts, until the job is over or gone.

        Args:
            only: Name of a pod. Of the others, there are only the last lines of some that failed.
        """
        ...

    def last_lines(self, handle: JobHandle, pod: str) -> list[str]:
        """Return the last lines of a pod that has ended, read again because logs() may be behind. It never raises."""
        ...

    def times(self, job: Job) -> JobTimes:
        """Return when the attempts of this run's stage and their pods began and ended. It never raises."""
        ...

    def annotate(self, handle: JobHandle, values: Mapping[str, str]) -> bool:
        """Return False if that did not work within a few seconds. It never raises."""
        ...

    def note(self, handle: JobHandle, values: Mapping[str, str]) -> None:
        """Annotate the job soon, without waiting for that. Only the newest value of an annotation counts."""
        ...

    def clean(self, handle: JobHandle) -> None:
        """Delete the running pods of a finished job. It never raises."""
        ...

    def delete(self, handle: JobHandle) -> None:
        """Stop the job's processes and delete the job. Deleting a job that is already gone is not an error."""
        ...

    def fail(self, handle: JobHandle, reason: str) -> None:
        """Stop the job's processes. Keep it as a failed job, with the reason, if that is possible; else delete it."""
        ...

    def run_outlives_launcher(self) -> bool:
        """Return True if the run continues after this launcher ends: a node is being drained, or the pod evicted."""
        ...

    def leave(self, handle: JobHandle) -> None:
        """Let the job continue without a launcher and without a run, until one adopts it. It never raises."""
        ...

    def adopt(self, job: JobState) -> None:
        """Make the job part of this run again if an earlier launcher left it. It never raises."""
        ...


class JobExists(Exception):
    """Another job has this name."""
