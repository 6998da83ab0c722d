"""How a job ended, from what is known of its pods: success is proven, anything else is a failure with its cause."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubetrain_components.jobs.job import (
    RESULT_ANNOTATION,
    SUCCEEDED,
    VERDICT_ANNOTATION,
    Job,
    JobState,
    LogLine,
    Phase,
    PodState,
)
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.termination import parse_last_words

TAIL_LINES = 20


class JobFailed(KubetrainError):
    """A job did not succeed."""

    def __init__(self, sentence: str, log_tail: Sequence[str] = (), trouble: TroubleKind | None = None) -> None:
        super().__init__(sentence)
        self.log_tail = tuple(log_tail)
        """The last lines of the failing pod."""
        self.trouble = trouble
        """What kept the job from running, if that is why it failed."""


class PodsDisrupted(JobFailed):
    """By the cluster, for reasons of its own, and the job makes no new ones: another attempt may succeed."""


def judge(job: Job, state: JobState, tails: Mapping[str, Sequence[str]]) -> None:
    """Pass only a job that succeeded and each of whose pods did: the job's own word comes early, and can be wrong.

    Raises:
        JobFailed: naming the pod that failed first.
    """
    if has_verdict(state):
        return
    succeeded = [pod for pod in state.pods if pod.phase is Phase.SUCCEEDED]
    if state.phase is Phase.SUCCEEDED and len(succeeded) == len(state.pods) == job.total_replicas:
        return
    if is_won(job, state):
        return
    culprit = _first_to_fail(state.pods)
    if culprit is None:
        missing = f"{len(succeeded)} of {job.total_replicas} pods succeeded"
        raise JobFailed(f"{job.identity.stage} failed: {state.message or missing}")
    failure = PodsDisrupted if any(pod.was_disrupted for pod in state.pods) else JobFailed
    raise failure(f"{job.identity.stage} failed: {describe(culprit)}", tails.get(culprit.name, ()))


def has_verdict(state: JobState) -> bool:
    """Whether a launcher before this one has seen the success of all, whose pods may be gone now."""
    return state.phase is Phase.SUCCEEDED and state.annotations.get(VERDICT_ANNOTATION) == SUCCEEDED


def is_won(job: Job, state: JobState) -> bool:
    """Whether an elastic job has succeeded without a pod that was lost: it may look for the others for ever."""
    lead = _lead(job, state)
    has_ended_well = lead is not None and lead.phase is Phase.SUCCEEDED
    return job.elastic is not None and state.phase is Phase.SUCCEEDED and has_ended_well


def lead_result(job: Job, state: JobState) -> dict[str, Any]:
    """What the job's first process reported of its success; empty where it reported nothing."""
    return parse_last_words(lead_words(job, state))


def lead_words(job: Job, state: JobState) -> str:
    lead = _lead(job, state)
    return state.annotations.get(RESULT_ANNOTATION) or (lead.last_words if lead else "")


def _lead(job: Job, state: JobState) -> PodState | None:
    return next((pod for pod in state.pods if (pod.role, pod.index) == (job.lead_role, 0)), None)


def describe(pod: PodState) -> str:
    """Why the pod's last container ended, in its own words where it left any."""
    error = parse_last_words(pod.last_words).get("error")
    cause = f"{pod.name}: {error}" if error else f"{pod.name} {pod.cause or _exit(pod)}"
    restarts = "a restart" if pod.restarts == 1 else f"{pod.restarts} restarts"
    return f"{cause} (after {restarts})" if pod.restarts else cause


def restart_notices(before: JobState | None, now: JobState) -> Iterator[LogLine]:
    """A line for each container that ended and is about to be started again, or each pod that was replaced."""
    known = {pod.name: pod.finished for pod in before.pods if not pod.phase.is_final} if before else {}
    for pod in now.pods:
        if pod.finished > 0 and not pod.phase.is_final and known.get(pod.name) != pod.finished:
            yield LogLine(pod.name, f"{pod.cause or _exit(pod)}; it is started again")


def _first_to_fail(pods: Sequence[PodState]) -> PodState | None:
    """The others often fail because it did."""
    return min(_failed(pods), key=lambda pod: pod.finished, default=None)


def last_to_fail(pods: Sequence[PodState]) -> PodState | None:
    return max(_failed(pods), key=lambda pod: pod.finished, default=None)


def _failed(pods: Sequence[PodState]) -> list[PodState]:
    return [pod for pod in pods if pod.exit_code or pod.cause]


def _exit(pod: PodState) -> str:
    code = pod.exit_code or 0
    if code > 128:
        try:
            return f"was ended by {signal.Signals(code - 128).name} (exit code {code})"
        except ValueError:
            pass
    return f"exited with code {code}"
