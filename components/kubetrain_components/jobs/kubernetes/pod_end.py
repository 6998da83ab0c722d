"""Why a replica's pods ended, as far as they and those who ended them say. Pure functions of pod manifests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubetrain_components.manifest import Manifest

DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by pods of a higher priority",
    "DeletionByTaintManager": "was deleted because of a taint of its node, as when that does not answer",
    "EvictionByEvictionAPI": "was evicted, as when a node is drained",
    "DeletionByPodGC": "was lost with its node",
    "TerminationByKubelet": "was ended by its node",
}
"""By the reason of a pod's DisruptionTarget."""
DEADLINE = "DeadlineExceeded"
LOST = {
    "Evicted": "was evicted",
    "Preempting": "was preempted by pods of a higher priority",
    "NodeLost": "was lost with its node",
    "NodeShutdown": "was ended with its node",
    "Terminated": "was ended with its node",
    DEADLINE: "was ended at the deadline",
    "NodeAffinity": "was refused by its node, whose labels are others by now",
    "UnexpectedAdmissionError": "was refused by its node",
}
"""By the reason of a pod that failed."""


@dataclass(frozen=True, kw_only=True)
class PodEnd:
    exit_code: int | None = None
    words: str = ""
    cause: str = ""
    finished: float = 0.0


def newest_end(container: str, pods: Sequence[Manifest]) -> PodEnd:
    """Of a replica's pods, oldest first, the newest that ended: earlier ones speak while it has nothing to say."""
    ends = (_end(container, pod, was_replaced=pod is not pods[-1]) for pod in reversed(pods))
    return next((end for end in ends if end is not None), PodEnd())


def container_status(container: str, pod: Manifest) -> Mapping[str, Any]:
    statuses = status_of(pod).get("containerStatuses") or []
    return next((each for each in statuses if each["name"] == container), {})


def restart_count(container: str, pod: Manifest) -> int:
    """Of an evicted pod whose container it finds no more, a kubelet counts the start that would have followed, too."""
    status = container_status(container, pod)
    is_miscounted = has_ended(pod) and "waiting" in (status.get("state") or {})
    return max(int(status.get("restartCount", 0)) - is_miscounted, 0)


def has_ended(pod: Manifest) -> bool:
    return status_of(pod).get("phase") in ("Succeeded", "Failed")


def is_cut_off(pod: Manifest) -> bool:
    """Whether its node does not answer: then it is the cluster that calls it unready, and gives no reason."""
    conditions = status_of(pod).get("conditions") or []
    ready = next((each for each in conditions if each["type"] == "Ready"), {"status": "Unknown"})
    is_there = not has_ended(pod) and not pod.get("deleted")
    return is_there and ready["status"] == "False" and not ready.get("reason")


def was_disrupted(pod: Manifest) -> bool:
    """Whether the cluster ended it, or is about to, for reasons of its own."""
    reason, phase = status_of(pod).get("reason", ""), status_of(pod).get("phase")
    return bool(_disruption(pod) or _lost(reason)) and reason != DEADLINE and phase != "Succeeded"


def status_of(pod: Manifest) -> Mapping[str, Any]:
    return pod.get("status") or {}


def seconds(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def _end(container: str, pod: Manifest, *, was_replaced: bool) -> PodEnd | None:
    """A pod that was asked to end may do so with code 0, and is replaced all the same."""
    ended = _terminated(container_status(container, pod))
    has_succeeded = status_of(pod).get("phase") == "Succeeded" and not was_replaced
    cause = "" if has_succeeded else _cause(pod, ended)
    if not ended and not cause:
        return None
    return PodEnd(
        exit_code=ended.get("exitCode"), words=ended.get("message") or "", cause=cause, finished=_finished(pod, ended)
    )


def _finished(pod: Manifest, ended: Mapping[str, Any]) -> float:
    """By whatever tells it: a pod that is lost at once has no end of its own, one that is asked to end has none yet."""
    if not (ended or has_ended(pod) or pod.get("deleted")):
        return 0.0
    times = (
        ended.get("finishedAt"),
        _failed_start(pod).get("finishedAt"),
        _disruption(pod).get("lastTransitionTime"),
        pod["metadata"].get("deletionTimestamp"),
    )
    return seconds(next(filter(None, times), None))


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    states = [(status.get(name) or {}).get("terminated") for name in ("state", "lastState")]
    return next((dict(ended) for ended in states if ended), {})


def _cause(pod: Manifest, ended: Mapping[str, Any]) -> str:
    if disruption := _disruption(pod):
        said = DISRUPTIONS.get(disruption.get("reason", ""), "was disrupted")
        return _with_words(said, disruption.get("message", ""))
    if lost := _lost(status_of(pod).get("reason", "")):
        return _with_words(lost, status_of(pod).get("message", ""))
    return _cause_of_container(pod, ended) if ended else _cause_without_end(pod)


def _cause_of_container(pod: Manifest, ended: Mapping[str, Any]) -> str:
    if ended.get("reason") == "OOMKilled":
        return f"ran out of memory{_memory_limit(pod)}: raise memory, or lower batch_size or loader_workers"
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        return _with_words("could not be started", ended.get("message", ""))
    return ""


def _cause_without_end(pod: Manifest) -> str:
    if status_of(pod).get("phase") != "Failed":
        return "was deleted while it ran" if pod.get("deleted") else ""
    if start := _failed_start(pod):
        return f"was not started: its init container {start['name']} exited with code {start['exitCode']}"
    return _with_words("failed", status_of(pod).get("message", ""))


def _disruption(pod: Manifest) -> Mapping[str, Any]:
    conditions = status_of(pod).get("conditions") or []
    found = [each for each in conditions if (each["type"], each["status"]) == ("DisruptionTarget", "True")]
    return found[0] if found else {}


def _lost(reason: str) -> str:
    if reason.startswith("OutOf"):
        return f"was refused by its node, which has too little {reason.removeprefix('OutOf')} left"
    return LOST.get(reason, "")


def _failed_start(pod: Manifest) -> Mapping[str, Any]:
    """Of the init container that failed, its name and its end."""
    statuses = status_of(pod).get("initContainerStatuses") or []
    ends = [{"name": status["name"], **_terminated(status)} for status in statuses]
    return next((end for end in ends if end.get("exitCode")), {})


def _memory_limit(pod: Manifest) -> str:
    limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return f", of which it may use {limits['memory']}" if "memory" in limits else ""


def _with_words(said: str, message: str) -> str:
    return f"{said}: {message.strip().rstrip('.')}" if message.strip() else said
