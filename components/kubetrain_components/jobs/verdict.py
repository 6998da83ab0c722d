"""Judge by its pods how a job ended: success must be proven, and everything else is a failure with a cause."""

import signal
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from kubetrain_components.jobs.annotations import RESULT_ANNOTATION, SUCCEEDED, VERDICT_ANNOTATION
from kubetrain_components.jobs.avoided_nodes import to_avoid_after
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import JobState, LogLine, Phase, PodState
from kubetrain_components.jobs.printed_errors import with_printed_errors
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_trainer import termination
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import AFTER_THE_END, LOST_ANOTHER
from kubetrain_trainer.processes.watchdog import HOLDS_GIL
from kubetrain_trainer.termination import parse_termination_message

TAIL_LINES = 20
"""Number of last lines to show of the pod that failed."""
KEPT_LINES = 100
"""Number of those in which its error is looked for: torchrun prints fifty lines after it."""
INCIDENT_SECONDS = 600.0
"""Ends of pods within this time may have one cause: processes notice late that another one was lost."""


class JobFailed(KubetrainError):
    """A job did not succeed."""

    def __init__(
        self, sentence: str, log_tail: Sequence[str] = (), trouble: TroubleKind | None = None, step: int = -1
    ) -> None:
        super().__init__(sentence)
        self.log_tail = tuple(log_tail)[-TAIL_LINES:]
        """Last lines of the failed pod's log."""
        self.trouble = trouble
        """Kind of trouble that the job failed for; None: another cause."""
        self.account: Sequence[str] = ()
        """Lines about what the job cost and what its time was spent on."""
        self.step = step
        """Last step that the job reported."""
        self.bad_nodes: tuple[str, ...] = ()
        """The nodes that another attempt avoids."""

    @property
    def last_lines(self) -> list[str]:
        """The log's tail with a heading, because it usually repeats what was printed with the names of the pods, and
        the account."""
        tail = ["last lines of the pod that failed:", *self.log_tail] if self.log_tail else []
        return [*tail, *self.account]


class PodsDisrupted(JobFailed):
    """A job failed because its pods were disrupted or deleted, so another attempt may succeed."""


class PodsOnBadNodes(JobFailed):
    """A job failed because its preflight found bad nodes, so an attempt without them may succeed."""

    def __init__(self, sentence: str, log_tail: Sequence[str], bad_nodes: tuple[str, ...], step: int = -1) -> None:
        super().__init__(sentence, log_tail, step=step)
        self.bad_nodes = bad_nodes


def judge(job: Job, state: JobState, tail_of: Callable[[str], Sequence[str]]) -> None:
    """Accept a job only with proof: the job's own status comes early, and can be wrong.

    Raises:
        JobFailed: if the job failed, with the pod that caused it.
    """
    if has_verdict(state) or is_proven(job, state):
        return
    if state.phase is Phase.SUCCEEDED and not state.pods:
        raise PodsDisrupted(f"{job.identity.stage} has succeeded, but its pod was deleted with what it reported")
    culprit = culprit_of(with_printed_errors(state.pods, tail_of))
    if culprit is None:
        succeeded = sum(pod.phase is Phase.SUCCEEDED for pod in state.pods)
        message = state.message if state.phase is Phase.FAILED else ""
        raise JobFailed(
            f"{job.identity.stage} failed: {message or f'{succeeded} of {job.total_replicas} pods succeeded'}"
        )
    sentence, tail = f"{job.identity.stage} failed: {describe(culprit)}", tail_of(culprit.name)
    if nodes := to_avoid_after(state, culprit):
        raise PodsOnBadNodes(sentence, tail, nodes)
    is_taken = culprit.was_deleted or any(pod.was_disrupted for pod in state.pods)
    raise (PodsDisrupted if is_taken else JobFailed)(sentence, tail)


def is_proven(job: Job, state: JobState) -> bool:
    """Return True if the job succeeded, and all of its pods did, or rank 0 and no other pod failed by itself."""
    if not state.is_ending:
        return False
    if len(state.pods) >= job.total_replicas and all(pod.phase is Phase.SUCCEEDED for pod in state.pods):
        return True
    if has_counted_success(job, state) or any(pod.has_led_to_success for pod in state.pods):
        return True
    if any(pod.phase is Phase.FAILED and not pod.was_disrupted for pod in state.pods):
        return has_lead_success(job, state)
    return has_lead_success(job, state) or has_checkpoint(job, state) or has_lost_proof(job, state)


def has_counted_success(job: Job, state: JobState) -> bool:
    """Return True if Kubernetes itself saw each pod of a command exit with code 0; some of them may be gone by now."""
    is_command = job.is_indexed and not job.reports_checkpoint
    have_succeeded = all(pod.phase is Phase.SUCCEEDED for pod in state.pods)
    return is_command and state.phase is Phase.SUCCEEDED and have_succeeded


def has_checkpoint(job: Job, state: JobState) -> bool:
    """Return True if rank 0 succeeded and reported a complete checkpoint."""
    lead = _lead(job, state)
    has_succeeded = lead is not None and lead.phase is Phase.SUCCEEDED
    return has_succeeded and lead_result(job, state).get("status") == "completed"


def has_lost_proof(job: Job, state: JobState) -> bool:
    """Return True if a training succeeded, but the pod of rank 0 is gone: only its checkpoint can prove the success."""
    has_no_words = not lead_words(job, state) and not _lead(job, state)
    return job.reports_checkpoint and state.phase is Phase.SUCCEEDED and has_no_words


def has_verdict(state: JobState) -> bool:
    """Return True if an earlier launcher saw all pods succeed; they may be deleted by now."""
    return state.phase is Phase.SUCCEEDED and state.annotations.get(VERDICT_ANNOTATION) == SUCCEEDED


def has_lead_success(job: Job, state: JobState) -> bool:
    """Return True if the job and its lead succeeded, and that suffices: others are deleted, or were replaced late."""
    lead = _lead(job, state)
    lead_succeeded = lead is not None and lead.phase is Phase.SUCCEEDED
    suffices = job.lead_decides or job.elastic is not None
    return suffices and state.phase is Phase.SUCCEEDED and lead_succeeded


def lead_result(job: Job, state: JobState) -> dict[str, Any]:
    """Return what rank 0 reported when it succeeded; empty if it reported nothing."""
    return parse_termination_message(lead_words(job, state))


def lead_words(job: Job, state: JobState) -> str:
    """Return the termination message of rank 0, from its pod or from the job's annotation."""
    lead = _lead(job, state)
    return state.annotations.get(RESULT_ANNOTATION) or (lead.last_words if lead else "")


def _lead(job: Job, state: JobState) -> PodState | None:
    return next((pod for pod in state.pods if (pod.role, pod.index) == (job.lead_role, 0)), None)


def describe(pod: PodState) -> str:
    """Return why the pod's last container ended, and after how many restarts."""
    restarts = "a restart" if pod.restarts == 1 else f"{pod.restarts} restarts"
    return f"{cause_of(pod)} (after {restarts})" if pod.restarts else cause_of(pod)


def cause_of(pod: PodState) -> str:
    """Return why the pod's last container ended, with the error that it reported, if any."""
    error = parse_termination_message(pod.last_words).get("error")
    return f"{pod.name}: {error}" if error else f"{pod.name} {pod.cause or _exit(pod)}"


def restart_notices(before: JobState | None, now: JobState) -> Iterator[LogLine]:
    """Yield a line for each container that will be restarted and for each pod that was replaced."""
    if before is now:  # as in most seconds, for perhaps a thousand pods
        return
    known = {pod.name: pod.finished for pod in before.pods if not pod.phase.is_final} if before else {}
    for pod in now.pods:
        if pod.finished > 0 and not pod.phase.is_final and known.get(pod.name) != pod.finished:
            yield LogLine(pod.name, f"{pod.cause or _exit(pod)}; restarting")


def culprit_of(pods: Sequence[PodState]) -> PodState | None:
    """Return the pod that made the others fail: the first that did not just lose another one.

    Times have whole seconds, so that pods which end together are told apart by what they reported.
    """
    ended = [pod for pod in pods if pod.exit_code or pod.cause]
    newest = max((pod.finished for pod in ended), default=0.0)
    recent = [pod for pod in ended if not pod.finished or pod.finished >= newest - INCIDENT_SECONDS]
    return min(recent, key=_distance_from_cause, default=None)


def failed_in_vain(job: Job, pods: Sequence[PodState]) -> PodState | None:
    """Return a pod that failed by itself, and would wait in vain for another one, whose processes had ended.

    The training that has told its result is complete: the pod only reports it again.
    """
    if job.elastic or job.lead_decides or any(_has_completed(pod) for pod in pods):
        return None
    failed = (pod for pod in pods if (pod.exit_code or pod.cause) and pod.phase is not Phase.SUCCEEDED)
    alone = (pod for pod in failed if any(_had_ended(other, pod) for other in pods))
    return min((pod for pod in alone if not _is_after_the_end(pod)), key=_distance_from_cause, default=None)


def _had_ended(other: PodState, failed: PodState) -> bool:
    """Return True if a pod that failed has not run again until the processes of this one had ended."""
    if other.phase is Phase.SUCCEEDED:
        is_down = failed.phase is Phase.PENDING or 0 < failed.started <= failed.finished
        return is_down or failed.started >= other.finished
    is_same_incident = abs(other.finished - failed.finished) < INCIDENT_SECONDS
    return is_same_incident and not failed.was_disrupted and _is_after_the_end(other)


def _is_after_the_end(pod: PodState) -> bool:
    return _error(pod).startswith(f"{LOST_ANOTHER} {AFTER_THE_END}")


def _has_completed(pod: PodState) -> bool:
    """Return True if the pod has told that the training is complete: a pod that starts again only reports that."""
    return parse_termination_message(pod.last_words).get("status") == "completed"


def _error(pod: PodState) -> str:
    return str(parse_termination_message(pod.last_words).get("error", ""))


def _is_effect(pod: PodState) -> bool:
    """Return True if the pod failed because another one did."""
    return _error(pod).startswith(LOST_ANOTHER) and not pod.was_disrupted


def _distance_from_cause(pod: PodState) -> tuple[bool, bool, float]:
    was_overcome = is_incurable(pod) and pod.phase is Phase.RUNNING  # by a restart
    return was_overcome or not is_incurable(pod), _is_effect(pod) or was_overcome, pod.finished


def is_incurable(pod: PodState) -> bool:
    """Return True if the pod reported an error that no restart can cure."""
    return termination.is_incurable(pod.last_words)


def _exit(pod: PodState) -> str:
    code = pod.exit_code or 0
    if code > 128:
        try:
            name = signal.Signals(code - 128).name
            return f"was killed by {name} (exit code {code})" + (f": it {HOLDS_GIL}" if name == "SIGALRM" else "")
        except ValueError:
            pass
    return f"exited with code {code}"
