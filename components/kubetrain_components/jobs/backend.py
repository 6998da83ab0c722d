"""The port to whatever runs jobs. Adapters hold no policy: what follows from their reports is follow.py's business."""

from collections.abc import Iterator, Mapping
from typing import Protocol

from kubetrain_components.jobs.job import Job, JobHandle, JobState, LogLine


class JobBackend(Protocol):
    def find(self, job: Job) -> JobState | None:
        """The job of this one's kind and name, whoever made it; None where there is none."""
        ...

    def create(self, job: Job) -> JobHandle:
        """Start the job under its identity's name.

        Raises:
            JobExists: where the name is taken.
        """
        ...

    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        """What is known of the job: at once, after each change, and at least every second; None once it is gone."""
        ...

    def logs(self, handle: JobHandle) -> Iterator[LogLine]:
        """Every line of every pod from the beginning, across restarts, until the job is over or gone."""
        ...

    def annotate(self, handle: JobHandle, values: Mapping[str, str]) -> None: ...

    def clean(self, handle: JobHandle, pods: str) -> None:
        """Let go of what a job that is over still holds: its Running pods, All, or None."""
        ...

    def delete(self, handle: JobHandle) -> None:
        """Stop the job and forget it; its processes end. Deleting what is gone already is no error."""
        ...

    def run_outlives_launcher(self) -> bool:
        """Whether the run that this launcher works for outlives it: its node is drained, nobody wants to cancel."""
        ...


class JobExists(Exception):
    """Another job has this name."""
