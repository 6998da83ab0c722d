"""The loop that owns a job: it creates the job or attaches to it, follows it, and judges how it ended.

Existing job with this name                  | action
none                                         | create it
one of another run, or with another spec     | refuse: never delete a job to make room
this run's, being deleted                    | wait until it is gone, then create it
this run's, running                          | follow it
this run's, succeeded                        | return its result
this run's, failed without a verdict on it   | report the failure, and annotate the job with the verdict
this run's, failed with a verdict on it      | create the next attempt, which resumes from the checkpoint

A job that failed because the cluster disrupted one of its pods is retried immediately.
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
    has_elastic_success,
    has_verdict,
    judge,
    last_to_fail,
    lead_words,
    restart_notices,
)
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.termination import parse_termination_message

DRAIN_SECONDS = 10.0
LAST_LINES_SECONDS = 0.5
PROGRESS_SECONDS = 10.0
MAX_ATTEMPTS_AFTER_DISRUPTION = 3
"""The same number as the restarts that a training is allowed for other reasons."""


class JobNotOurs(KubetrainError):
    """The name belongs to a job that this launch must not touch."""


def run_job(
    job: Job,
    backend: JobBackend,
    on_line: OnLine,
    budgets: Budgets | None = None,
    clock: Clock = time.monotonic,
) -> JobState:
    """Run the job to its end and return its state, which is a proven success.

    A KeyboardInterrupt (interrupts.py turns SIGTERM into one) deletes the job and is raised again. If the run continues
    without this process the job stays: draining a node sends SIGTERM too.

    Args:
        budgets: Time limits; None: those of the job's placement.

    Raises:
        JobFailed: if the job failed, with the pod, the cause, and the last lines of the pod's log.
        JobNotOurs: if another job has the name.
    """
    for _ in range(MAX_ATTEMPTS_AFTER_DISRUPTION):
        try:
            return _run_attempt(job, backend, on_line, BudgetTracker(budgets or Budgets.of(job), clock))
        except PodsDisrupted as disruption:
            on_line(LogLine(job.lead, f"{disruption}; the job restarts once all of its pods have ended"))
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
    """Annotate the job with the verdict before its pods are deleted, for a launcher that restarts after that."""
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
    """Return the job to follow, according to the table at the top of this file."""
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
            _delete_running_pods(found.handle, backend)
            job = replace(job, identity=job.identity.next_attempt())
        else:
            return found.handle


def _delete_running_pods(handle: JobHandle, backend: JobBackend) -> None:
    """Delete pods and wait until they have ended, so that two attempts never write to the same folder."""
    backend.clean(handle, "Running")
    for state in backend.watch(handle):
        if state is None or state.is_over:
            return


def _create(job: Job, backend: JobBackend) -> JobHandle:
    """Create the job. An interrupt waits for the request, so that no job is left without a launcher."""
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
        f"job {found.handle.name} already exists: it belongs to run {run_id} with spec {spec_hash}, not to run "
        f"{job.identity.run_id} with spec {job.spec_hash}; start a new run, or delete that job if it is not needed"
    )


def _wait_until_gone(handle: JobHandle, backend: JobBackend) -> None:
    for state in backend.watch(handle):
        if state is None:
            return


def _follow(job: Job, handle: JobHandle, backend: JobBackend, logs: JobLogs, tracker: BudgetTracker) -> JobState:
    """Watch the job and pass its logs on until nothing can change the verdict."""
    before: JobState | None = None
    progress = _ProgressAnnotation(handle, backend, logs)
    for state in backend.watch(handle):
        if state is None:
            raise JobFailed(f"job {handle.name} was deleted by someone else: start the run again to resume")
        if state.phase is Phase.FAILED or state.is_over or has_elastic_success(job, state) or has_verdict(state):
            # Any remaining pods may never end, so don't wait for their lines.
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
        progress.update()
        before = state
    raise JobFailed(f"job {handle.name}: the backend stopped reporting before the job was over: start the run again")


def _incurable(job: Job, state: JobState) -> Failure | None:
    """Return why no restart can help: a process reported a permanent error, or no more restarts are allowed.

    The operator does not count restarts of pods that it replaced, and counts none with ExitCode.
    """
    for pod in state.pods:
        words = parse_termination_message(pod.last_words)
        if words.get("status") == "failed" and not words.get("curable", True):
            return Failure(describe(pod))
    restarts = sum(pod.restarts for pod in state.pods)
    if restarts > job.backoff_limit and (culprit := last_to_fail(state.pods)) is not None:
        return Failure(f"{describe(culprit)}; its pods restarted {restarts} times, the limit set by max_restarts")
    return None


class _ProgressAnnotation:
    """Keeps the progress in an annotation of the job, so that it can be read without the log."""

    def __init__(self, handle: JobHandle, backend: JobBackend, logs: JobLogs) -> None:
        self._handle, self._backend, self._logs = handle, backend, logs
        self._written = ""
        self._written_at = time.monotonic()

    def update(self) -> None:
        if self._logs.progress == self._written or time.monotonic() - self._written_at < PROGRESS_SECONDS:
            return
        self._written, self._written_at = self._logs.progress, time.monotonic()
        self._backend.annotate(self._handle, {PROGRESS_ANNOTATION: self._written})
