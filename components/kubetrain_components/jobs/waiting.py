"""Wait for an earlier job to end before its successor starts."""

import time
from collections.abc import Callable, Sequence

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.budgets import Clock
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.job_state import JobHandle, JobState, LogLine
from kubetrain_components.jobs.trouble_notices import TroubleNotices
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_trainer.some_of import MAX_NAMED, some_of

POLL_SECONDS = 0.5


def have_pods_ended(state: JobState) -> bool:
    return all(pod.phase.is_final and not pod.lingering for pod in state.pods)


class Waiting:
    """Waits for the end of an earlier job, says for what, and gives up in the time that a job has to start."""

    def __init__(self, job: Job, backend: JobBackend, on_line: OnLine, clock: Clock) -> None:
        self._job, self._backend, self._on_line, self._clock = job, backend, on_line, clock
        self._pods_since: float | None = None

    def until(self, handle: JobHandle, what: str, condition: Callable[[JobState], bool]) -> None:
        """Return once the job meets the condition or is gone."""
        waited, last, notices = 0.0, self._clock(), TroubleNotices(self._clock)
        for number, state in enumerate(self._backend.watch(handle)):
            if state is None or condition(state):
                return
            if number == 0:
                self._on_line(LogLine(self._job.lead, f"job {handle.name} {what}"))
            for line in notices.due(state):
                self._on_line(line)
            now = self._clock()
            waited, last = waited + (0.0 if state.is_after_gap else now - last), now
            if waited > self._job.placement.start_seconds:
                raise JobFailed(f"job {handle.name} {what} took more than start_seconds: {_obstacles(state)}")

    def for_pods(self, pods: Sequence[str]) -> None:
        """Wait a moment for pods whose job is gone: its deletion ends them late, and `--cascade=orphan` never."""
        what = f"the pods {some_of(pods)} of an earlier job of this run"
        if self._pods_since is None:
            self._pods_since = self._clock()
            self._on_line(LogLine(self._job.lead, f"waiting until {what} have ended"))
        if self._clock() - self._pods_since > self._job.placement.start_seconds:
            remedy = "delete them with kubectl, with --force if their node is lost"
            raise JobFailed(f"{what} have not ended within start_seconds: {remedy}")
        time.sleep(POLL_SECONDS)


def _obstacles(state: JobState) -> str:
    """Return what keeps the job or its pods from ending."""
    if state.troubles:
        return "; ".join(trouble.failure for trouble in state.troubles[:MAX_NAMED])
    pods = some_of([pod.name for pod in state.pods if not pod.phase.is_final])
    return f"pods {pods} do not end: delete them with kubectl" if pods else "delete it with kubectl"
