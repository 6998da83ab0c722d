"""Count the restarts of a training that are its own fault.

A restart does not count while the job cannot run without a pod that the cluster took, and neither does the restart of
each other pod that follows a loss: a process ends when it loses another one. An elastic job that runs with fewer pods
may wait for days, so its later restarts count. Progress gives restarts back.
"""

from kubetrain_components.jobs.budgets import Clock
from kubetrain_components.jobs.job_state import JobState
from kubetrain_trainer.reporting.progress_line import parse_progress

HEADWAY_SECONDS = 600.0
"""Time that a training must spend on steps it had never reached before, until its restarts are forgiven."""


class RestartCounter:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._seen: int | None = None
        """Restarts of all pods in the previous state; those before the first state do not count."""
        self._counted = 0
        self._excused = 0
        """Restarts that may still follow a disruption."""
        self._lost: set[str] = set()
        """Pods that were lost in the previous state."""
        self._step = self._furthest = -1
        self._counted_at_step = 0
        """Restarts that counted when the last step was reported: the pods of that step had not been lost yet."""
        self._headway_since: float | None = None

    def count(self, state: JobState, progress: str) -> int:
        """Return the number of restarts that count in this state.

        Args:
            progress: The newest progress line of the lead pod.
        """
        self._note_step(step_of(progress))
        restarts = [pod.restarts - pod.replacements for pod in state.pods]
        # A Worker of MPI that restarts ends mpirun, which restarts as well: that is one restart of the training.
        has_launcher = any(pod.role == "Launcher" for pod in state.pods)
        total = max(restarts) if has_launcher else sum(restarts)
        new = max(total - (total if self._seen is None else self._seen), 0)
        self._seen = total
        if self._is_disrupted(state):
            self._excused, self._counted = len(state.pods), self._counted_at_step
            self._headway_since = None
        else:
            self._add(new)
        return self._counted

    def _is_disrupted(self, state: JobState) -> bool:
        """Return True if a pod has just been lost, or if the job cannot run without the lost ones."""
        lost = [pod for pod in state.pods if pod.is_lost]
        before, self._lost = self._lost, {pod.name for pod in lost}
        return bool(lost) and (not state.can_do_without(lost) or not self._lost <= before)

    def _add(self, restarts: int) -> None:
        excused = min(restarts, self._excused)
        self._excused -= excused
        self._counted += restarts - excused
        if restarts:
            self._headway_since = None

    def _note_step(self, step: int) -> None:
        if step == self._step:
            return
        self._step, self._counted_at_step = step, self._counted
        if step > self._furthest:
            self._furthest = step
            self._headway_since = self._headway_since or self._clock()
            if self._clock() - self._headway_since >= HEADWAY_SECONDS:
                self._counted = self._counted_at_step = 0


def step_of(progress: str) -> int:
    """Return the step of a progress line, such as step=3/9; -1 if it has none."""
    step = str((parse_progress(progress) or {}).get("step", "")).partition("/")[0]
    return int(float(step)) if step.replace(".", "", 1).isdigit() else -1
