"""The loop that owns a job: it creates the job or attaches to it, follows it, and judges how it ended.

Newest attempt of the job                    | action
none                                         | wait until the pods of an earlier one have ended, then create it
one of another run, or with another spec     | refuse: never delete a job to make room
this run's, being deleted                    | wait until it is gone, then create it
this run's, running                          | follow it
this run's, succeeded                        | return its result
this run's, failed without a verdict on it   | report the failure, and annotate the job with the verdict
this run's, judged as failed, with any spec  | create the next attempt, which resumes from the checkpoint

A job that failed because one of its pods was disrupted or deleted is retried immediately. So is one whose preflight
found bad nodes, which the next attempt avoids.
"""

import contextlib
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.annotations import (
    FAILED,
    LABEL_PREFIX,
    RESULT_ANNOTATION,
    SECONDS_RUNNING_ANNOTATION,
    SUCCEEDED,
    VERDICT_ANNOTATION,
)
from kubetrain_components.jobs.avoided_nodes import as_annotation, avoided_by, merged
from kubetrain_components.jobs.backend import JobBackend, JobExists
from kubetrain_components.jobs.budgets import Budgets, Clock
from kubetrain_components.jobs.following import Following, TroubleNotices
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_logs import JobLogs, OnLine, is_large
from kubetrain_components.jobs.job_state import JobHandle, JobState, LogLine, Phase
from kubetrain_components.jobs.restarts import step_of
from kubetrain_components.jobs.shown_lines import ShownLines, shown_apart
from kubetrain_components.jobs.verdict import JobFailed, PodsDisrupted, PodsOnBadNodes, judge, lead_words
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.some_of import MAX_NAMED, some_of

POLL_SECONDS = 0.5

INSIST_SECONDS = 300.0
MAX_ATTEMPTS_WITHOUT_PROGRESS = 3
"""Number of attempts after disruptions or on other nodes, none of which reached a new step."""


class JobNotOurs(KubetrainError):
    """The name belongs to a job that this launch must not touch."""


class OtherSettings(JobNotOurs):
    """The job of this run, which succeeded or still runs, has other settings."""


def run_job(
    job: Job,
    backend: JobBackend,
    on_line: OnLine,
    budgets: Budgets | None = None,
    clock: Clock = time.monotonic,
    *,
    follow_all: bool = False,
) -> JobState:
    """Run the job to its end and return its state, which is a proven success.

    A KeyboardInterrupt (interrupts.py turns SIGTERM into one) deletes the job and is raised again. If the run continues
    without this process the job stays: draining a node sends SIGTERM too.

    Args:
        budgets: Time limits; None: those of the job's placement.
        follow_all: Pass on all lines of all pods, also if the job is large.

    Raises:
        JobFailed: if the job failed, with the pod, the cause, and the last lines of the pod's log.
        JobNotOurs: if another job has the name.
    """
    furthest, attempts, judged = -1, 0, set[str]()
    only = job.lead if is_large(job) and not follow_all else ""
    with shown_apart(on_line, job.lead) as show:
        while True:
            try:
                return _run_attempt(job, backend, show, budgets or Budgets.of(job), clock, judged, only)
            except (PodsDisrupted, PodsOnBadNodes) as failure:
                attempts = 1 if failure.step > furthest else attempts + 1
                furthest = max(furthest, failure.step)
                if attempts > MAX_ATTEMPTS_WITHOUT_PROGRESS:
                    raise _last_failure(failure) from None
                job = replace(job, avoided_nodes=failure.bad_nodes or job.avoided_nodes)
                where = f" without {some_of(job.avoided_nodes)}" if job.avoided_nodes else ""
                show(LogLine(job.lead, f"{failure}; the job restarts{where} once all of its pods have ended"))


def _last_failure(failure: JobFailed) -> JobFailed:
    """Return the failure with what to do if other nodes did not help."""
    if not failure.bad_nodes:
        return failure
    return JobFailed(
        f"{failure}; no attempts are left after {MAX_ATTEMPTS_WITHOUT_PROGRESS} without a new step: repair "
        f"{some_of(failure.bad_nodes)} and start a new run, or leave out train.preflight=avoid to train there",
        failure.log_tail,
    )


def _run_attempt(
    job: Job, backend: JobBackend, show: ShownLines, budgets: Budgets, clock: Clock, judged: set[str], only: str
) -> JobState:
    handle: JobHandle | None = None
    try:
        handle = create_or_attach(job, backend, show, clock, judged)
        logs = JobLogs(backend.logs(handle, only), show, show.offer, job.lead, lead_changes=job.meets_in_etcd)
        following = Following(job, handle, backend, logs, budgets, clock)
        state = following.until_over()
        judged.add(handle.uid)
        _record_verdict(job, state, backend, logs, following.seconds_running)
    except KeyboardInterrupt:
        with interrupts_deferred():  # a second Ctrl-C must not leave the job behind
            failure = _let_go(job, handle, backend, show)
        if failure and failure.is_curable:
            _insist(job, handle, backend, show)
        raise
    return state


def _let_go(job: Job, handle: JobHandle | None, backend: JobBackend, show: OnLine) -> KubetrainError | None:
    """Delete the job, or leave it to a later launcher if the run continues without this one; return why not."""
    must_leave = backend.run_outlives_launcher()
    try:
        # It may exist although the answer to its creation was lost.
        if handle := handle or _newest(job, backend):
            if not must_leave:
                show(LogLine(job.lead, f"deleting {job.kind.value} {handle.name}"))
            (backend.leave if must_leave else backend.delete)(handle)
    except KubetrainError as error:
        if must_leave:
            return None
        what = f"{job.kind.value} {handle.name if handle else job.identity.name}"
        show(LogLine(job.lead, f"could not delete {what} ({error}): delete it yourself, or it continues to run"))
        return error
    return None


def _insist(job: Job, handle: JobHandle | None, backend: JobBackend, show: OnLine) -> None:
    """Try for minutes to delete the job, because only Argo kills a launcher before that."""
    show(LogLine(job.lead, "trying again for 5 minutes: press Ctrl-C again to give up"))
    deadline = time.monotonic() + INSIST_SECONDS
    while (failure := _let_go(job, handle, backend, lambda line: None)) and time.monotonic() < deadline:
        time.sleep(1)
    show(LogLine(job.lead, f"could not delete it: {failure}" if failure else "the job is deleted"))


def _newest(job: Job, backend: JobBackend) -> JobHandle | None:
    """Return this launch's newest job; None if it has none."""
    newest = replace(job, identity=job.identity.newest_of(backend.attempts(job)))
    if (found := backend.find(newest)) is None or found.is_over:
        return None
    with contextlib.suppress(JobNotOurs):
        _check_is_ours(newest, found)
        return found.handle
    return None


def _record_verdict(job: Job, state: JobState, backend: JobBackend, logs: JobLogs, seconds_running: str) -> None:
    """Annotate the job with the verdict before its pods are deleted, for a launcher that restarts after that."""
    try:
        judge(job, state, lambda pod: backend.last_lines(state.handle, pod) or logs.tail(pod))
    except JobFailed as failure:
        failure.step = step_of(logs.progress)
        failed = {VERDICT_ANNOTATION: FAILED, SECONDS_RUNNING_ANNOTATION: seconds_running}
        _end_pods(state, backend, {**failed, **as_annotation(failure.bad_nodes)})
        raise
    _end_pods(state, backend, {VERDICT_ANNOTATION: SUCCEEDED, RESULT_ANNOTATION: lead_words(job, state)})


def _end_pods(state: JobState, backend: JobBackend, verdict: Mapping[str, str]) -> None:
    if backend.annotate(state.handle, verdict):
        backend.clean(state.handle)


def create_or_attach(
    job: Job,
    backend: JobBackend,
    on_line: OnLine = lambda line: None,
    clock: Clock = time.monotonic,
    judged: Collection[str] = (),
) -> JobHandle:
    """Return the job to follow, according to the table at the top of this file.

    Args:
        judged: UIDs of the jobs that this launcher has judged, perhaps without being able to annotate them.
    """
    # Earlier attempts may be gone, so the newest one decides.
    job = replace(job, identity=job.identity.newest_of(backend.attempts(job)))
    waiting = Waiting(job, backend, on_line, clock)
    while True:
        found = backend.find(job)
        if found is None:
            if pods := backend.unended_pods(job):
                waiting.for_pods(pods)
                continue
            try:
                return backend.create(job)
            except JobExists:
                continue  # another launcher of the same run was faster: look again
        has_failed = _is_judged_as_failed(found, judged)
        _check_is_ours(job, found, any_spec=has_failed)
        if found.is_deleting:
            waiting.until(found.handle, "is being deleted: waiting until it is gone", lambda state: False)
        elif has_failed:
            # Two attempts must never write to the same folder.
            backend.clean(found.handle)
            waiting.until(found.handle, "has failed: waiting until its last pods have ended", have_pods_ended)
            known = avoided_by(found) if _has_spec(job, found) else ()  # with another spec, the user may want them back
            nodes = merged(known, job.avoided_nodes)
            seconds = found.annotations.get(SECONDS_RUNNING_ANNOTATION, "")
            job = replace(job, identity=job.identity.next_attempt(), avoided_nodes=nodes, seconds_running=seconds)
        else:
            if found.phase is Phase.SUCCEEDED:  # else its log looks like that of a new training
                on_line(LogLine(job.lead, f"job {found.handle.name} has already succeeded: its log follows"))
            backend.adopt(found)
            return found.handle


def _is_judged_as_failed(found: JobState, judged: Collection[str]) -> bool:
    is_judged = found.handle.uid in judged or found.annotations.get(VERDICT_ANNOTATION) == FAILED
    return found.phase.is_final and is_judged


def _check_is_ours(job: Job, found: JobState, *, any_spec: bool = False) -> None:
    run_id = found.annotations.get(LABEL_PREFIX + "run-id")
    if run_id == job.identity.run_id and (any_spec or _has_spec(job, found)):
        return
    if run_id == job.identity.run_id:
        raise OtherSettings(
            f"job {found.handle.name} of run {run_id} already exists with other settings: start a new run with another "
            "ID, or delete that job and start again"
        )
    raise JobNotOurs(
        f"job {found.handle.name} already exists: it belongs to run {run_id}, not to run {job.identity.run_id}: start "
        "a new run, or delete that job if it is not needed"
    )


def _has_spec(job: Job, found: JobState) -> bool:
    return _spec_of(found) == job.spec_hash


def _spec_of(found: JobState) -> str | None:
    return found.labels.get(LABEL_PREFIX + "spec-hash")


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
                raise JobFailed(f"job {handle.name} {what} took more than pods.start_seconds: {_obstacles(state)}")

    def for_pods(self, pods: Sequence[str]) -> None:
        """Wait a moment for pods whose job is gone: its deletion ends them late, and `--cascade=orphan` never."""
        what = f"the pods {some_of(pods)} of an earlier job of this run"
        if self._pods_since is None:
            self._pods_since = self._clock()
            self._on_line(LogLine(self._job.lead, f"waiting until {what} have ended"))
        if self._clock() - self._pods_since > self._job.placement.start_seconds:
            remedy = "delete them with kubectl, with --force if their node is lost"
            raise JobFailed(f"{what} have not ended within pods.start_seconds: {remedy}")
        time.sleep(POLL_SECONDS)


def _obstacles(state: JobState) -> str:
    """Return what keeps the job or its pods from ending."""
    if state.troubles:
        return "; ".join(trouble.failure for trouble in state.troubles[:MAX_NAMED])
    pods = some_of([pod.name for pod in state.pods if not pod.phase.is_final])
    return f"pods {pods} do not end: delete them with kubectl" if pods else "delete it with kubectl"
