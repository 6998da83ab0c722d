"""The loop that owns a job: it creates the job or attaches to it, follows it, and judges how it ended.

Newest attempt of the job                    | action
none                                         | create it
one of another run, or with another spec     | refuse: never delete a job to make room
this run's, being deleted                    | wait until it is gone, then create it
this run's, running                          | follow it
this run's, succeeded                        | return its result
this run's, failed without a verdict on it   | report the failure, and annotate the job with the verdict
this run's, failed with a verdict on it      | create the next attempt, which resumes from the checkpoint

A job that failed because the cluster disrupted one of its pods is retried immediately.
"""

import contextlib
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
ANNOTATE_AGAIN_SECONDS = 60.0
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
    handle: JobHandle | None = None
    try:
        handle = create_or_attach(job, backend)
        logs = JobLogs(backend.logs(handle), on_line, job.lead)
        state = _follow(job, handle, backend, logs, tracker)
    except KeyboardInterrupt:
        with interrupts_deferred():  # a second Ctrl-C must not leave the job behind
            _let_go(job, handle, backend, on_line)
        raise
    _record_verdict(job, state, backend, logs)
    return state


def _let_go(job: Job, handle: JobHandle | None, backend: JobBackend, on_line: OnLine) -> None:
    """Delete the job, or leave it to a later launcher if the run continues without this one."""
    must_leave = backend.run_outlives_launcher()
    handle = handle or _newest(job, backend)
    if handle is None:
        return
    if must_leave:
        backend.leave(handle)
        return
    what = f"{handle.kind.value} {handle.name}"
    _tell(f"deleting {what}", job, on_line)
    try:
        backend.delete(handle)
    except KubetrainError as error:
        _tell(f"could not delete {what} ({error}): delete it yourself, or it continues to run", job, on_line)


def _tell(sentence: str, job: Job, on_line: OnLine) -> None:
    with contextlib.suppress(Exception):  # a closed stdout must not keep the job
        on_line(LogLine(job.lead, sentence))


def _newest(job: Job, backend: JobBackend) -> JobHandle | None:
    """Return this launch's newest job; None if it has none, or the API does not answer."""
    with contextlib.suppress(KubetrainError):
        newest = replace(job, identity=job.identity.newest_of(backend.attempts(job)))
        if (found := backend.find(newest)) is not None and not found.is_over:
            _check_is_ours(newest, found)
            return found.handle
    return None


def _record_verdict(job: Job, state: JobState, backend: JobBackend, logs: JobLogs) -> None:
    """Annotate the job with the verdict before its pods are deleted, for a launcher that restarts after that."""
    handle = state.handle
    verdict = {VERDICT_ANNOTATION: FAILED}
    try:
        judge(job, state, logs.tails())
        verdict = {VERDICT_ANNOTATION: SUCCEEDED, RESULT_ANNOTATION: lead_words(job, state)}
    finally:
        if backend.annotate(handle, verdict):
            backend.clean(handle, job.placement.clean_pods)


def create_or_attach(job: Job, backend: JobBackend) -> JobHandle:
    """Return the job to follow, according to the table at the top of this file."""
    # Earlier attempts may be gone, so the newest one decides.
    job = replace(job, identity=job.identity.newest_of(backend.attempts(job)))
    while True:
        found = backend.find(job)
        if found is None:
            try:
                return backend.create(job)
            except JobExists:
                continue  # another launcher of the same run was faster: look again
        _check_is_ours(job, found)
        if found.is_deleting:
            _wait_until_gone(found.handle, backend)
        elif found.phase is Phase.FAILED and VERDICT_ANNOTATION in found.annotations:
            _delete_running_pods(found.handle, backend)
            job = replace(job, identity=job.identity.next_attempt())
        else:
            backend.adopt(found)
            return found.handle


def _delete_running_pods(handle: JobHandle, backend: JobBackend) -> None:
    """Delete pods and wait until they have ended, so that two attempts never write to the same folder."""
    backend.clean(handle, "Running")
    for state in backend.watch(handle):
        if state is None or state.is_over:
            return


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
        self._write_at = time.monotonic() + PROGRESS_SECONDS

    def update(self) -> None:
        progress = self._logs.progress
        if progress == self._written or time.monotonic() < self._write_at:
            return
        is_written = self._backend.annotate(self._handle, {PROGRESS_ANNOTATION: progress})
        self._written = progress if is_written else self._written
        self._write_at = time.monotonic() + (PROGRESS_SECONDS if is_written else ANNOTATE_AGAIN_SECONDS)
