"""Follow one job until nothing can change how it ended: pass on its logs, name its troubles, and keep its budgets."""

import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from kubetrain_components.jobs.annotations import PROGRESS_ANNOTATION, SECONDS_RUNNING_ANNOTATION
from kubetrain_components.jobs.avoided_nodes import as_annotation, to_avoid_after
from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.budgets import Budgets, BudgetTracker, Clock, Failure
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_logs import JobLogs
from kubetrain_components.jobs.job_state import JobHandle, JobState, LogLine, Phase, PodState
from kubetrain_components.jobs.printed_errors import with_printed_errors
from kubetrain_components.jobs.restarts import RestartCounter, step_of
from kubetrain_components.jobs.troubles import Trouble, TroubleKind
from kubetrain_components.jobs.verdict import (
    JobFailed,
    PodsDisrupted,
    PodsOnBadNodes,
    cause_of,
    culprit_of,
    describe,
    failed_in_vain,
    has_lead_success,
    has_lost_proof,
    has_verdict,
    is_incurable,
    is_proven,
    restart_notices,
)
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import IN_VAIN
from kubetrain_trainer.some_of import MAX_NAMED, some_of

Key = tuple[TroubleKind, str]
REPEAT_SECONDS = 10.0
"""Min time between two lines about one kind of trouble: pods of a large job get it one after the other."""

DRAIN_SECONDS = 10.0
LAST_LINES_SECONDS = 0.5
PROGRESS_SECONDS = 10.0
SECONDS_WITHOUT_PROGRESS = 60.0
"""Min times between two notes on the job."""
REPORT_SECONDS = 10.0
"""Time within which a cluster reports what a pod that it has replaced does."""


class Following:
    """Watches a job and passes its logs on until nothing can change the verdict."""

    def __init__(
        self, job: Job, handle: JobHandle, backend: JobBackend, logs: JobLogs, budgets: Budgets, clock: Clock
    ) -> None:
        self._job, self._handle, self._backend, self._logs = job, handle, backend, logs
        self._tracker = BudgetTracker(budgets, clock)
        self._restarts = RestartCounter(clock)
        self._notices = TroubleNotices(clock)
        self._progress = _ProgressAnnotation(handle, backend, logs, self._tracker)
        self._before: JobState | None = None
        self._examined: JobState | None = None
        self._in_vain_since = math.inf
        self._overcome: dict[str, float] = {}
        """Times of the ends, by pod, after which the pod was restarted before this launcher followed the job."""

    @property
    def seconds_running(self) -> str:
        """The time that counts for the deadline, of this attempt and those before it."""
        return f"{self._tracker.seconds_running:.0f}"

    def until_over(self) -> JobState:
        for state in self._backend.watch(self._handle):
            if state is None:
                raise JobFailed(f"job {self._handle.name} was deleted by someone else: start the run again to resume")
            if self._is_decided(state):
                # Any remaining pods may never end, so don't wait for their lines.
                self._logs.drain(DRAIN_SECONDS if state.is_over else LAST_LINES_SECONDS)
                return state
            if (failure := self._incurable(state)) is None and self._tracker.exceeded(state) is not None:
                # Nothing is ended for an outdated state.
                if (state := self._backend.read(self._handle)) is None or self._is_decided(state):
                    continue
                failure = self._tracker.exceeded(replace(state, is_after_gap=True))
            if failure is not None:
                return self._end(state, failure)
            self._report(state)
        raise JobFailed(
            f"job {self._handle.name}: the backend stopped reporting before the job was over: start the run again"
        )

    def _is_decided(self, state: JobState) -> bool:
        is_certain = has_lead_success(self._job, state) or has_verdict(state) or has_lost_proof(self._job, state)
        return state.phase is Phase.FAILED or state.is_over or is_certain

    def _report(self, state: JobState) -> None:
        for notice in together(restart_notices(self._before, state)):
            self._logs.pass_on(notice)
        for notice in self._notices.due(state):
            self._logs.pass_on(notice)
        self._progress.update()
        self._before = state

    def _incurable(self, state: JobState) -> Failure | None:
        """Return why no restart can help: a process reported a permanent error, or no more restarts are allowed."""
        if self._before is None:
            self._overcome = {pod.name: pod.finished for pod in state.pods if pod.phase is Phase.RUNNING}
        for pod in state.pods if state is not self._before else ():
            if is_incurable(pod) and self._overcome.get(pod.name) != pod.finished:
                return Failure(describe(pod), pod=pod.name, avoid_nodes=to_avoid_after(state, pod))
        if (alone := self._failed_in_vain(state)) is not None:
            reason = f"{cause_of(alone)}; {IN_VAIN}"
            return Failure(reason, pod=alone.name, is_disruption=alone.was_disrupted or alone.replacements > 0)
        restarts = self._restarts.count(state, self._logs.progress)
        if restarts >= max(self._job.backoff_limit, 1) and (culprit := culprit_of(self._pods_with_errors(state))):
            # The restart over the limit may have begun already, so a count would be one too high.
            return Failure(f"{cause_of(culprit)}; no restarts are left", pod=culprit.name)
        return None

    def _failed_in_vain(self, state: JobState) -> PodState | None:
        """Return the pod, once the cluster would have reported a replacement that has met the others."""
        if (alone := failed_in_vain(self._job, state.pods)) is None:
            self._in_vain_since = math.inf
        if alone is None or state == self._examined:
            return None
        self._in_vain_since = min(self._in_vain_since, time.monotonic())
        may_be_late = alone.was_disrupted or alone.replacements > 0 or alone.phase is Phase.PENDING
        if may_be_late and time.monotonic() - self._in_vain_since < REPORT_SECONDS:
            return None
        self._examined = state
        return failed_in_vain(self._job, self._pods_with_errors(state))

    def _pods_with_errors(self, state: JobState) -> tuple[PodState, ...]:
        self._logs.drain(LAST_LINES_SECONDS)
        return with_printed_errors(state.pods, self._last_lines)

    def _last_lines(self, pod: str) -> list[str]:
        return self._backend.last_lines(self._handle, pod) or self._logs.tail(pod)

    def _end(self, state: JobState, failure: Failure) -> JobState:
        """Fail a job that cannot continue, or return its state if it has succeeded all the same."""
        if is_proven(self._job, state):
            # A job that is not over would create the pods again that its verdict deletes.
            not_deleted = "" if state.phase.is_final else self._stop(self._backend.delete)
            accepted = f"{failure.reason}; the work is complete, so the job has succeeded{not_deleted}"
            self._logs.pass_on(LogLine(self._job.lead, accepted))
            return state
        self._logs.drain(LAST_LINES_SECONDS)  # a local job is deleted with its logs
        if failure.avoid_nodes:  # a launcher that restarts after that has to know them
            self._backend.annotate(self._handle, as_annotation(failure.avoid_nodes))
        culprit = culprit_of(state.pods)
        pod = failure.pod or (culprit.name if culprit else "")
        last_lines = self._backend.last_lines(self._handle, pod) if pod else []  # before the pod is deleted
        # The requests may be retried for long.
        self._logs.tell(f"{failure.reason}: ending {self._handle.kind.value} {self._handle.name}")
        not_deleted = self._stop(lambda handle: self._backend.fail(handle, failure.reason))
        self._logs.drain(DRAIN_SECONDS)
        tail = last_lines or self._logs.tail(pod)
        # The sentence repeats what the process reported.
        tail = [line for line in tail if not line.startswith("error: ") or line[7:] not in failure.reason]
        sentence = f"{self._job.identity.stage} failed: {failure.reason}{not_deleted}"
        if failure.avoid_nodes and not not_deleted:
            raise PodsOnBadNodes(sentence, tail, failure.avoid_nodes, step_of(self._logs.progress))
        if failure.is_disruption and not not_deleted:
            raise PodsDisrupted(sentence, tail, step=step_of(self._logs.progress))
        raise JobFailed(sentence, tail, failure.trouble)

    def _stop(self, stop: Callable[[JobHandle], None]) -> str:
        """Stop the job; return what to say if that does not work, because it is not the cause of the failure."""
        try:
            stop(self._handle)
        except KubetrainError as error:
            return f"; job {self._handle.name} could not be deleted and keeps its pods ({error}): delete it yourself"
        return ""


class _ProgressAnnotation:
    """Keeps the progress in an annotation of the job, so that it can be read without the log. Also keeps the running
    time for a launcher that restarts, even if a training that hangs makes no progress."""

    def __init__(self, handle: JobHandle, backend: JobBackend, logs: JobLogs, tracker: BudgetTracker) -> None:
        self._handle, self._backend, self._logs, self._tracker = handle, backend, logs, tracker
        self._noted = {SECONDS_RUNNING_ANNOTATION: "0"}
        self._noted_at = time.monotonic()

    def update(self) -> None:
        values = self._values()
        is_new = values.get(PROGRESS_ANNOTATION) != self._noted.get(PROGRESS_ANNOTATION)
        pause = PROGRESS_SECONDS if is_new else SECONDS_WITHOUT_PROGRESS
        if values == self._noted or time.monotonic() < self._noted_at + pause:
            return
        self._backend.note(self._handle, values)
        self._noted, self._noted_at = values, time.monotonic()

    def _values(self) -> dict[str, str]:
        seconds = {SECONDS_RUNNING_ANNOTATION: f"{self._tracker.seconds_running:.0f}"}
        progress = self._logs.progress
        return {PROGRESS_ANNOTATION: progress, **seconds} if progress else seconds


def together(lines: Iterable[LogLine]) -> Iterator[LogLine]:
    """Yield one line to show for many pods. The others are only kept, in case their pod fails."""
    by_text: defaultdict[str, list[LogLine]] = defaultdict(list)
    for line in lines:
        by_text[line.text].append(line)
    for same in by_text.values():
        yield from same if len(same) <= MAX_NAMED else _one_for_all(*same)


def _one_for_all(first: LogLine, *others: LogLine) -> Iterator[LogLine]:
    named = some_of([item.pod for item in others])
    yield replace(first, text=f"{first.text}; the same for {len(others)} more pods: {named}")
    for other in others:
        yield replace(other, is_hidden=True)


class TroubleNotices:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._since: dict[Key, float] = {}
        self._told: set[Key] = set()
        self._told_at: dict[TroubleKind, float] = {}

    def due(self, state: JobState) -> Iterator[LogLine]:
        """Yield a line for each kind of trouble that pods have newly, once it has lasted for a moment."""
        now = self._clock()
        present = {(trouble.kind, trouble.subject): trouble for trouble in state.troubles}
        self._since = {key: self._since.get(key, now) for key in present}
        self._told &= present.keys()
        for kind in dict.fromkeys(trouble.kind for trouble in present.values()):
            fresh = {key: trouble for key, trouble in present.items() if key[0] is kind and key not in self._told}
            if fresh and self._is_due([*fresh.values()], min(map(self._since.__getitem__, fresh)), now):
                self._told |= fresh.keys()
                self._told_at[kind] = now
                yield _line([*fresh.values()], state)

    def _is_due(self, fresh: list[Trouble], since: float, now: float) -> bool:
        kind = fresh[0].kind
        is_repeated = fresh[0].is_of_pod and now - self._told_at.get(kind, -REPEAT_SECONDS) < REPEAT_SECONDS
        return now - since >= kind.value.notice_seconds and not is_repeated


def _line(troubles: list[Trouble], state: JobState) -> LogLine:
    others = len(troubles) - 1
    more = f"; the same for {others} more pod{'s' * (others > 1)}, such as {troubles[-1].subject}" if others else ""
    notice = troubles[0].late_notice if troubles[0].subject in state.late_pods else troubles[0].notice
    return LogLine(troubles[0].subject, notice + more)
