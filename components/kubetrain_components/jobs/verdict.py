"""How a job ended, from what is known of its pods: success is proven, anything else is a failure with its cause."""

import signal
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kubetrain_components.jobs.job import Job, JobState, LogLine, Phase, PodState
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.termination import parse_last_words

TAIL_LINES = 20


class JobFailed(KubetrainError):
    """A job did not succeed."""

    def __init__(self, sentence: str, log_tail: Sequence[str] = ()) -> None:
        super().__init__(sentence)
        self.log_tail = tuple(log_tail)
        """The last lines of the failing pod."""


def judge(job: Job, state: JobState, tails: Mapping[str, Sequence[str]]) -> None:
    """Pass only a job that succeeded and each of whose pods did: the job's own word comes early, and can be wrong.

    Raises:
        JobFailed: naming the pod that failed first.
    """
    succeeded = [pod for pod in state.pods if pod.phase is Phase.SUCCEEDED]
    if state.phase is Phase.SUCCEEDED and len(succeeded) == len(state.pods) == job.total_replicas:
        return
    if is_won(job, state):
        return
    culprit = _first_to_fail(state.pods)
    if culprit is None:
        missing = f"{len(succeeded)} of {job.total_replicas} pods succeeded"
        raise JobFailed(f"{job.identity.stage} failed: {state.message or missing}")
    raise JobFailed(f"{job.identity.stage} failed: {describe(culprit)}", tails.get(culprit.name, ()))


def is_won(job: Job, state: JobState) -> bool:
    """Whether an elastic job has succeeded without a pod that was lost: it may look for the others for ever."""
    return job.elastic is not None and state.phase is Phase.SUCCEEDED and _lead(job, state).phase is Phase.SUCCEEDED


def lead_result(job: Job, state: JobState) -> dict[str, Any]:
    """What the job's first process reported of its success; empty where it reported nothing."""
    return parse_last_words(_lead(job, state).last_words)


def _lead(job: Job, state: JobState) -> PodState:
    return next(pod for pod in state.pods if (pod.role, pod.index) == (job.lead_role, 0))


def describe(pod: PodState) -> str:
    """Why the pod's last container ended, in its own words where it left any."""
    error = parse_last_words(pod.last_words).get("error")
    cause = f"{pod.name}: {error}" if error else f"{pod.name} {_exit(pod)}"
    return f"{cause} (after {pod.restarts} restarts)" if pod.restarts else cause


def restart_notices(before: JobState | None, now: JobState) -> Iterator[LogLine]:
    """A line for each container that ended and is about to be started again."""
    known = {pod.name: pod for pod in before.pods} if before else {}
    for pod in now.pods:
        is_news = pod.finished > 0 and (pod.name not in known or known[pod.name].finished != pod.finished)
        if is_news and pod.phase is Phase.RUNNING:
            yield LogLine(pod.name, f"{_exit(pod)}; its container is started again")


def _first_to_fail(pods: Sequence[PodState]) -> PodState | None:
    """The others often fail because it did."""
    failed = [pod for pod in pods if pod.exit_code]
    return min(failed, key=lambda pod: pod.finished, default=None)


def _exit(pod: PodState) -> str:
    code = pod.exit_code or 0
    if code > 128:
        try:
            return f"was ended by {signal.Signals(code - 128).name} (exit code {code})"
        except ValueError:
            pass
    return f"exited with code {code}"
