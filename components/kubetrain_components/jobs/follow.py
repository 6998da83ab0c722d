"""The one loop that owns a job: creates it or attaches to it again, follows it, and says how it ended.

What is there under the job's name      | what happens
nothing                                 | create
another owner's, or another spec        | refuse: never delete to make room
ours, being deleted                     | wait until it is gone, then create
ours, running                           | follow
ours, succeeded                         | take its verdict
ours, failed, no verdict annotated yet  | report the failure, and annotate that it was
ours, failed and annotated              | create the next attempt, which resumes from the checkpoint

A job that failed because the cluster took a pod of it, and that makes no new pod itself, gets its next attempt at once.
"""

import time
from dataclasses import replace

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.backend import JobBackend, JobExists
from kubetrain_components.jobs.budgets import Budgets, BudgetTracker, Clock, Failure
from kubetrain_components.jobs.job import (
    FAILED,
    LABEL_PREFIX,
    PROGRESS_ANNOTATION,
    RESULT_ANNOTATION,
    SUCCEEDED,
    VERDICT_ANNOTATION,
    Job,
    JobHandle,
    JobState,
    LogLine,
    Phase,
)
from kubetrain_components.jobs.job_logs import JobLogs, OnLine
from kubetrain_components.jobs.verdict import (
    JobFailed,
    PodsDisrupted,
    describe,
    has_verdict,
    is_won,
    judge,
    last_to_fail,
    lead_words,
    restart_notices,
)
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.termination import parse_last_words

DRAIN_SECONDS = 10.0
LAST_LINES_SECONDS = 0.5
STATUS_SECONDS = 10.0
ATTEMPTS_AFTER_LOSS = 3
"""As many as a training may start anew for any other reason."""


class JobNotOurs(KubetrainError):
    """The name is taken by a job that this launch must not touch."""


def run_job(
    job: Job,
    backend: JobBackend,
    on_line: OnLine,
    budgets: Budgets | None = None,
    clock: Clock = time.monotonic,
) -> JobState:
    """See the job to its end and return its state, which is a proven success.

    A KeyboardInterrupt (interrupts.py makes one of SIGTERM) deletes the job before it goes on, unless the run that the
    job belongs to goes on without this process: a drained node sends SIGTERM too.

    Args:
        budgets: None: as the job's placement has them.

    Raises:
        JobFailed: naming the pod, the cause, and the last lines of its log.
        JobNotOurs: where the name is taken.
    """
    for _ in range(ATTEMPTS_AFTER_LOSS):
        try:
            return _run_attempt(job, backend, on_line, BudgetTracker(budgets or Budgets.of(job), clock))
        except PodsDisrupted as loss:
            on_line(LogLine(job.lead, f"{loss}; it is started again once all of its pods have ended"))
    return _run_attempt(job, backend, on_line, BudgetTracker(budgets or Budgets.of(job), clock))


def _run_attempt(job: Job, backend: JobBackend, on_line: OnLine, tracker: BudgetTracker) -> JobState:
    handle = create_or_attach(job, backend)
    try:
        logs = JobLogs(backend.logs(handle), on_line, job.lead)
        state = _follow(job, handle, backend, logs, tracker)
    except KeyboardInterrupt:
        if not backend.run_outlives_launcher():
            backend.delete(handle)
        raise
    _record_verdict(job, state, backend, logs)
    return state


def _record_verdict(job: Job, state: JobState, backend: JobBackend, logs: JobLogs) -> None:
    """On the job, before its pods go: a launcher started again finds there what they cannot tell it any more."""
    handle = state.handle
    try:
        judge(job, state, logs.tails())
    except JobFailed:
        backend.annotate(handle, {VERDICT_ANNOTATION: FAILED})
        raise
    else:
        backend.annotate(handle, {VERDICT_ANNOTATION: SUCCEEDED, RESULT_ANNOTATION: lead_words(job, state)})
    finally:
        backend.clean(handle, job.placement.clean_pods)


def create_or_attach(job: Job, backend: JobBackend) -> JobHandle:
    """The job to follow, by the table above."""
    while True:
        found = backend.find(job)
        if found is None:
            try:
                return _create(job, backend)
            except JobExists:
                continue  # another launcher of the same run was faster: look again
        _check_is_ours(job, found)
        if found.is_deleting:
            _wait_until_gone(found.handle, backend)
        elif found.phase is Phase.FAILED and VERDICT_ANNOTATION in found.annotations:
            _end_pods(found.handle, backend)
            job = replace(job, identity=job.identity.next_attempt())
        else:
            return found.handle


def _end_pods(handle: JobHandle, backend: JobBackend) -> None:
    """Or those of two attempts would write checkpoints to one place."""
    backend.clean(handle, "Running")
    for state in backend.watch(handle):
        if state is None or state.is_over:
            return


def _create(job: Job, backend: JobBackend) -> JobHandle:
    """A creation in flight is finished before an interrupt is heard: what it makes would be nobody's."""
    handle = None
    try:
        with interrupts_deferred():
            handle = backend.create(job)
    except KeyboardInterrupt:
        if handle is not None and not backend.run_outlives_launcher():
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


def _follow(job: Job, handle: JobHandle, backend: JobBackend, logs: JobLogs, tracker: BudgetTracker) -> JobState:
    """Watch until nothing can change the verdict any more, with the logs beside it."""
    before: JobState | None = None
    status = _StatusLine(handle, backend, logs)
    for state in backend.watch(handle):
        if state is None:
            raise JobFailed(f"job {handle.name} is gone: it was deleted by someone else; start the run again to resume")
        if state.phase is Phase.FAILED or state.is_over or is_won(job, state) or has_verdict(state):
            # Pods that are left then may go on for ever: theirs are not the lines to wait for.
            logs.drain(DRAIN_SECONDS if state.is_over else LAST_LINES_SECONDS)
            return state
        if (failure := _incurable(job, state) or tracker.exceeded(state)) is not None:
            backend.delete(handle)
            logs.drain(DRAIN_SECONDS)
            raise JobFailed(f"{job.identity.stage} failed: {failure.reason}", trouble=failure.trouble)
        for notice in restart_notices(before, state):
            logs.pass_on(notice)
        for trouble in tracker.new_troubles(state):
            logs.pass_on(LogLine(trouble.subject, trouble.notice))
        status.renew()
        before = state
    raise JobFailed(f"job {handle.name}: the backend stopped reporting before the job was over")


def _incurable(job: Job, state: JobState) -> Failure | None:
    """Why no restart can help, where a process has said so, or no more is allowed.

    The operator forgets the restarts of pods that it replaced, and under ExitCode counts none.
    """
    for pod in state.pods:
        words = parse_last_words(pod.last_words)
        if words.get("status") == "failed" and not words.get("curable", True):
            return Failure(describe(pod))
    restarts = sum(pod.restarts for pod in state.pods)
    if restarts > job.backoff_limit and (culprit := last_to_fail(state.pods)) is not None:
        return Failure(f"{describe(culprit)}; its pods restarted {restarts} times, the limit set by max_restarts")
    return None


class _StatusLine:
    """How far the job is, on the job itself: whoever looks at it need not read its log."""

    def __init__(self, handle: JobHandle, backend: JobBackend, logs: JobLogs) -> None:
        self._handle, self._backend, self._logs = handle, backend, logs
        self._said = ""
        self._spoke = time.monotonic()

    def renew(self) -> None:
        if self._logs.progress == self._said or time.monotonic() - self._spoke < STATUS_SECONDS:
            return
        self._said, self._spoke = self._logs.progress, time.monotonic()
        self._backend.annotate(self._handle, {PROGRESS_ANNOTATION: self._said})
