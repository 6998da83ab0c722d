"""A run or a job at one moment."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from kubetrain_components.jobs.annotations import FAILED, FAILURE_ANNOTATION, VERDICT_ANNOTATION
from kubetrain_components.jobs.job_state import JobState, Phase, PodState
from kubetrain_components.jobs.verdict import culprit_of, describe
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.run_status import RunStatus
from kubetrain_trainer.reporting.progress_line import parse_progress


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The newest line of progress in the log of rank 0."""

    values: Mapping[str, str | float]
    reported: float | None = None
    """Time of the line in seconds since the epoch; None: unknown."""


def newest_progress(lines: Iterable[tuple[str, float]]) -> Progress | None:
    """
    Args:
        lines: The last lines of a log, the newest one first, with their times in seconds since the epoch.
    """
    found = (Progress(values=values, reported=time) for line, time in lines if (values := parse_progress(line)))
    return next(found, None)


def lead_of(state: JobState) -> PodState | None:
    """Return the pod of rank 0; None if the job has no pods."""
    lead_role = state.handle.kind.traits.lead_role
    return min(state.pods, key=lambda pod: (pod.role != lead_role, pod.index), default=None)


@dataclass(frozen=True, kw_only=True)
class JobSnapshot:
    name: str
    state: JobState
    nodes: Mapping[str, str] = field(default_factory=dict)
    """The nodes of its pods, by the pod's name in the state."""
    progress: Progress | None = None
    """None: unknown."""

    @property
    def phase(self) -> Phase:
        """The phase, or the verdict of its launcher, which knows better."""
        return Phase.FAILED if self.state.annotations.get(VERDICT_ANNOTATION) == FAILED else self.state.phase

    @property
    def has_ended(self) -> bool:
        return self.phase is Phase.FAILED or self.state.is_over or VERDICT_ANNOTATION in self.state.annotations

    @property
    def cause(self) -> str:
        """Why it failed; empty if it did not."""
        if self.phase is not Phase.FAILED:
            return ""
        culprit = culprit_of(self.state.pods)
        reported = self.state.annotations.get(FAILURE_ANNOTATION)
        return reported or (describe(culprit) if culprit else self.state.message) or "unknown"

    def to_dict(self) -> dict[str, Any]:
        pods = [
            {
                "name": pod.name,
                "state": pod.phase.value,
                "node": self.nodes.get(pod.name),
                "restarts": pod.restarts,
                "exit_code": pod.exit_code,
            }
            for pod in self.state.pods
        ]
        reported = self.progress.reported if self.progress else None
        return {
            "name": self.name,
            "kind": self.state.handle.kind.value,
            "state": self.phase.value,
            "cause": self.cause,
            "pods": pods,
            "waiting": [trouble.failure for trouble in self.state.troubles],
            "progress": dict(self.progress.values) if self.progress else None,
            "reported": datetime.fromtimestamp(reported, UTC).isoformat() if reported else None,
        }


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    run: Run | None = None
    """None for a job without a run."""
    jobs: Sequence[JobSnapshot] = ()
    """The job itself, or the jobs of the run that have not ended."""
    waiting: Sequence[str] = ()
    """Sentences that say what keeps steps of the run from starting."""
    causes: Sequence[str] = ()
    """Why the run failed, as far as that is known."""
    gaps: Sequence[str] = ()
    """The parts that could not be read, and why."""

    @property
    def name(self) -> str:
        return f"run {self.run.id}" if self.run else ", ".join(f"job {job.name}" for job in self.jobs)

    @property
    def is_over(self) -> bool:
        return self.run.state.is_final if self.run else all(job.has_ended for job in self.jobs)

    @property
    def failure(self) -> str:
        """What happened if it has ended without success, as RunStatus says it; else empty."""
        if self.run:
            return RunStatus(run=self.run, causes=self.causes).failure
        causes = [job.cause for job in self.jobs if job.cause]
        return f"failed: {'; '.join(causes)}" if causes else ""

    def to_dict(self) -> dict[str, Any]:
        return {
            **(self.run.to_dict() if self.run else {}),
            "causes": [*self.causes],
            "waiting": [*self.waiting],
            "jobs": [job.to_dict() for job in self.jobs],
            "not_read": [*self.gaps],
        }
