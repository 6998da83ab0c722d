"""The one loop that owns a job: creates it or attaches to it again, follows it, and says how it ended.

What is there under the job's name      | what happens
nothing                                 | create
another owner's, or another spec        | refuse: never delete to make room
ours, being deleted                     | wait until it is gone, then create
ours, running                           | follow
ours, succeeded                         | take its verdict
ours, failed, no verdict annotated yet  | report the failure, and annotate that it was
ours, failed and annotated              | create the next attempt, which resumes from the checkpoint
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.backend import JobBackend, JobExists
from kubetrain_components.jobs.job import (
    LABEL_PREFIX,
    VERDICT_ANNOTATION,
    Job,
    JobHandle,
    JobState,
    Phase,
)
from kubetrain_components.jobs.job_logs import JobLogs, OnLine
from kubetrain_components.jobs.verdict import JobFailed, describe, is_won, judge, restart_notices
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.termination import parse_last_words

DRAIN_SECONDS = 10.0
LAST_LINES_SECONDS = 0.5

Clock = Callable[[], float]


class JobNotOurs(KubetrainError):
    """The name is taken by a job that this launch must not touch."""


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """How long a job may be in each of its stages; None: as long as it takes."""

    queue_seconds: float | None = None
    """Suspended: waiting for a queue to admit it."""
    start_seconds: float | None = None
    """Until every pod runs."""
    run_seconds: float | None = None


def run_job(
    job: Job,
    backend: JobBackend,
    on_line: OnLine,
    budgets: Budgets = Budgets(),
    clock: Clock = time.monotonic,
) -> JobState:
    """See the job to its end and return its state, which is a proven success.

    A KeyboardInterrupt (interrupts.py makes one of SIGTERM) deletes the job before it goes on.

    Raises:
        JobFailed: naming the pod, the cause, and the last lines of its log.
        JobNotOurs: where the name is taken.
    """
    handle = create_or_attach(job, backend)
    try:
        logs = JobLogs(backend.logs(handle), on_line)
        state = _follow(job, handle, backend, logs, budgets, clock)
    except KeyboardInterrupt:
        backend.delete(handle)
        raise
    try:
        judge(job, state, logs.tails())
    except JobFailed:
        backend.annotate(handle, VERDICT_ANNOTATION, "failed")
        raise
    return state


def create_or_attach(job: Job, backend: JobBackend) -> JobHandle:
    """The job to follow, by the table above."""
    while True:
        found = backend.find(job.identity.name)
        if found is None:
            try:
                return _create(job, backend)
            except JobExists:
                continue  # another launcher of the same run was faster: look again
        _check_is_ours(job, found)
        if found.is_deleting:
            _wait_until_gone(found.handle, backend)
        elif found.phase is Phase.FAILED and VERDICT_ANNOTATION in found.annotations:
            job = replace(job, identity=job.identity.next_attempt())
        else:
            return found.handle


def _create(job: Job, backend: JobBackend) -> JobHandle:
    """A creation in flight is finished before an interrupt is heard: what it makes would be nobody's."""
    handle = None
    try:
        with interrupts_deferred():
            handle = backend.create(job)
    except KeyboardInterrupt:
        if handle is not None:
            backend.delete(handle)
        raise
    return handle


def _check_is_ours(job: Job, found: JobState) -> None:
    run_id = found.annotations.get(LABEL_PREFIX + "run-id")
    spec_hash = found.labels.get(LABEL_PREFIX + "spec-hash")
    if run_id == job.identity.run_id and spec_hash == job.spec_hash:
        return
    raise JobNotOurs(
        f"job {found.handle.name} is there already, of run {run_id} with spec {spec_hash}, not of run "
        f"{job.identity.run_id} with spec {job.spec_hash}: start a new run, or delete that job if nobody needs it"
    )


def _wait_until_gone(handle: JobHandle, backend: JobBackend) -> None:
    for state in backend.watch(handle):
        if state is None:
            return


def _follow(
    job: Job, handle: JobHandle, backend: JobBackend, logs: JobLogs, budgets: Budgets, clock: Clock
) -> JobState:
    """Watch until nothing can change the verdict any more, with the logs beside it."""
    stages = _StageClock(budgets, clock)
    before: JobState | None = None
    for state in backend.watch(handle):
        if state is None:
            raise JobFailed(f"job {handle.name} is gone: it was deleted by someone else; start the run again to resume")
        if state.phase is Phase.FAILED or state.is_over or is_won(job, state):
            # Pods that are left then may go on for ever: theirs are not the lines to wait for.
            logs.drain(DRAIN_SECONDS if state.is_over else LAST_LINES_SECONDS)
            return state
        if (reason := _hopeless(state) or stages.exceeded(state)) is not None:
            backend.delete(handle)
            logs.drain(DRAIN_SECONDS)
            raise JobFailed(f"{job.identity.stage} failed: {reason}")
        for notice in restart_notices(before, state):
            logs.pass_on(notice)
        before = state
    raise JobFailed(f"job {handle.name}: the backend stopped reporting before the job was over")


def _hopeless(state: JobState) -> str | None:
    """Why no restart can help, where a process has said so: a wrong setting stays wrong."""
    for pod in state.pods:
        words = parse_last_words(pod.last_words)
        if words.get("status") == "failed" and not words.get("curable", True):
            return describe(pod)
    return None


class _StageClock:
    """Counts the time in the queue, at the start and at work apart: waiting for admission is nobody's slowness."""

    def __init__(self, budgets: Budgets, clock: Clock) -> None:
        self._limits = {
            "waiting in the queue": budgets.queue_seconds,
            "starting": budgets.start_seconds,
            "running": budgets.run_seconds,
        }
        self._spent = dict.fromkeys(self._limits, 0.0)
        self._clock = clock
        self._last = clock()

    def exceeded(self, state: JobState) -> str | None:
        stage = _stage_of(state)
        now = self._clock()
        self._spent[stage] += now - self._last
        self._last = now
        limit = self._limits[stage]
        if limit is None or self._spent[stage] <= limit:
            return None
        return f"{stage} for {self._spent[stage]:.0f} s, more than the {limit:.0f} s allowed"


def _stage_of(state: JobState) -> str:
    if state.phase is Phase.SUSPENDED:
        return "waiting in the queue"
    if any(pod.phase is Phase.PENDING for pod in state.pods) or not state.pods:
        return "starting"
    return "running"
