"""The reasons why pods ended, according to their status. Pure functions of pod manifests."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from kubetrain_components.manifest import Manifest

DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by pods of a higher priority",
    "DeletionByTaintManager": "was deleted because of a taint on its node, for example an unreachable node's",
    "EvictionByEvictionAPI": "was evicted, for example because its node is drained",
    "DeletionByPodGC": "was lost with its node",
    "TerminationByKubelet": "was terminated by its node",
}
"""Descriptions of the reasons of the DisruptionTarget condition."""
DEADLINE = "DeadlineExceeded"
FAILURES = {
    "Evicted": "was evicted",
    "Preempting": "was preempted by pods of a higher priority",
    "NodeLost": "was lost with its node",
    "NodeShutdown": "was terminated because its node shut down",
    "Terminated": "was terminated because its node shut down",
    DEADLINE: "exceeded its deadline",
    "NodeAffinity": "was rejected by its node, whose labels have changed",
    "UnexpectedAdmissionError": "was rejected by its node",
}
"""Descriptions of the reasons of failed pods."""


@dataclass(frozen=True, kw_only=True)
class PodEnd:
    exit_code: int | None = None
    message: str = ""
    cause: str = ""
    finished: float = 0.0


def newest_end(container: str, pods: Sequence[Manifest]) -> PodEnd:
    """Return how the newest pod of a replica (oldest first) ended, or an earlier one while that has not ended."""
    ends = (_end(container, pod, was_replaced=pod is not pods[-1]) for pod in reversed(pods))
    return next((end for end in ends if end is not None), PodEnd())


def container_status(container: str, pod: Manifest) -> Mapping[str, Any]:
    statuses = status_of(pod).get("containerStatuses") or []
    return next((status for status in statuses if status["name"] == container), {})


def restart_count(container: str, pod: Manifest) -> int:
    """Return the restarts, without the one that a kubelet adds if it no longer finds an evicted pod's container."""
    status = container_status(container, pod)
    is_miscounted = has_ended(pod) and "waiting" in (status.get("state") or {})
    return max(int(status.get("restartCount", 0)) - is_miscounted, 0)


def has_ended(pod: Manifest) -> bool:
    return status_of(pod).get("phase") in ("Succeeded", "Failed")


def is_cut_off(pod: Manifest) -> bool:
    """Return True if the node does not answer: the cluster then marks its pods unready without a reason."""
    conditions = status_of(pod).get("conditions") or []
    ready = next((condition for condition in conditions if condition["type"] == "Ready"), {"status": "Unknown"})
    is_alive = not has_ended(pod) and not pod.get("deleted")
    return is_alive and ready["status"] == "False" and not ready.get("reason")


def was_disrupted(pod: Manifest) -> bool:
    """Return True if the cluster, not the pod itself, ended it or is about to."""
    reason, phase = status_of(pod).get("reason", ""), status_of(pod).get("phase")
    return bool(_disruption(pod) or _failure(reason)) and reason != DEADLINE and phase != "Succeeded"


def was_taken(pod: Manifest) -> bool:
    """Return True if the pod was disrupted, but not because a node lacks memory or disk, which it may have used up."""
    return was_disrupted(pod) and status_of(pod).get("reason") != "Evicted"


def was_deleted(container: str, pod: Manifest) -> bool:
    """Return True if somebody deleted the pod before its container ended; a TFJob fails before that."""
    metadata, ended = pod["metadata"], _terminated(container_status(container, pod))
    if not ended:
        return ("deletionTimestamp" in metadata or bool(pod.get("deleted"))) and not has_ended(pod)
    asked = seconds(metadata.get("deletionTimestamp")) - (metadata.get("deletionGracePeriodSeconds") or 0)
    return "deletionTimestamp" in metadata and seconds(ended.get("finishedAt")) >= asked


def lingering_containers(container: str, pod: Manifest) -> tuple[str, ...]:
    """Return the containers beside the main one that still run after it has ended, such as injected sidecars."""
    state = container_status(container, pod).get("state") or {}
    if "terminated" not in state or has_ended(pod) or pod.get("deleted"):
        return ()
    statuses = status_of(pod).get("containerStatuses") or []
    return tuple(status["name"] for status in statuses if "running" in (status.get("state") or {}))


def finished_at(pod: Manifest, ended: Mapping[str, Any]) -> float:
    """Return when the pod ended: 0 while it runs. A lost pod has no end time, so other times stand in."""
    if not (ended or has_ended(pod) or pod.get("deleted")):
        return 0.0
    times = (
        ended.get("finishedAt"),
        _failed_init_container(pod).get("finishedAt"),
        _disruption(pod).get("lastTransitionTime"),
        pod["metadata"].get("deletionTimestamp"),
    )
    return seconds(next(filter(None, times), None))


def started_at(container: str, pod: Manifest) -> float:
    """Return when the newest container started: 0 if none has."""
    status = container_status(container, pod)
    states = [*(status.get("state") or {}).values(), *(status.get("lastState") or {}).values()]
    return seconds(next((state["startedAt"] for state in states if state.get("startedAt")), None))


def status_of(pod: Manifest) -> Mapping[str, Any]:
    return pod.get("status") or {}


def seconds(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0


def last_seen(event: Manifest) -> float:
    return seconds(event.get("lastTimestamp") or event.get("eventTime"))


def _end(container: str, pod: Manifest, *, was_replaced: bool) -> PodEnd | None:
    """Return None if the pod has not ended. One that was replaced did not succeed, even if it exited with code 0."""
    ended = _terminated(container_status(container, pod))
    has_succeeded = status_of(pod).get("phase") == "Succeeded" and not was_replaced
    cause = "" if has_succeeded else _cause(container, pod, ended)
    if not ended and not cause:
        return None
    return PodEnd(
        exit_code=ended.get("exitCode"),
        message=ended.get("message") or "",
        cause=cause,
        finished=finished_at(pod, ended),
    )


def _terminated(status: Mapping[str, Any]) -> Mapping[str, Any]:
    states = [(status.get(name) or {}).get("terminated") for name in ("state", "lastState")]
    return next((dict(ended) for ended in states if ended), {})


def _cause(container: str, pod: Manifest, ended: Mapping[str, Any]) -> str:
    if disruption := _disruption(pod):
        description = DISRUPTIONS.get(disruption.get("reason", ""), "was disrupted")
        return _with_message(description, disruption.get("message", ""))
    if failure := _failure(status_of(pod).get("reason", "")):
        return _with_message(failure, status_of(pod).get("message", ""))
    if was_deleted(container, pod):
        return "was deleted while it was running"
    return _cause_of_container(container, pod, ended) if ended else _cause_without_end(pod)


def _cause_of_container(container: str, pod: Manifest, ended: Mapping[str, Any]) -> str:
    if ended.get("reason") == "OOMKilled":
        return (
            f"ran out of memory{_memory_limit(container, pod)}: raise pods.memory, or lower train.batch_size or "
            "train.loader_workers"
        )
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        return _with_message("could not be started", ended.get("message", ""))
    if not ended.get("exitCode") and status_of(pod).get("phase") == "Failed" and (other := _failed_container(pod)):
        return f"failed: its container {other['name']} exited with code {other['exitCode']}"
    return ""


def _cause_without_end(pod: Manifest) -> str:
    if status_of(pod).get("phase") != "Failed":
        return ""
    if init := _failed_init_container(pod):
        return f"did not start: its init container {init['name']} exited with code {init['exitCode']}"
    return _with_message("failed", status_of(pod).get("message", ""))


def _disruption(pod: Manifest) -> Mapping[str, Any]:
    conditions = status_of(pod).get("conditions") or []
    found = [
        condition
        for condition in conditions
        if (condition["type"], condition["status"]) == ("DisruptionTarget", "True")
    ]
    return found[0] if found else {}


def _failure(reason: str) -> str:
    if reason.startswith("OutOf"):
        return f"was rejected by its node, which has too little {reason.removeprefix('OutOf')} left"
    return FAILURES.get(reason, "")


def _failed_init_container(pod: Manifest) -> Mapping[str, Any]:
    """Return the name and the end of the init container that failed. A sidecar is restarted instead."""
    containers = (pod.get("spec") or {}).get("initContainers") or []
    sidecars = {container["name"] for container in containers if container.get("restartPolicy") == "Always"}
    return _failed_container(pod, "initContainerStatuses", sidecars)


def _failed_container(
    pod: Manifest, kind: str = "containerStatuses", ignored: Collection[str] = ()
) -> Mapping[str, Any]:
    statuses = status_of(pod).get(kind) or []
    ends = [{"name": status["name"], **_terminated(status)} for status in statuses if status["name"] not in ignored]
    return next((end for end in ends if end.get("exitCode")), {})


def _memory_limit(container: str, pod: Manifest) -> str:
    spec: Manifest = next((item for item in pod["spec"]["containers"] if item["name"] == container), {})
    limits = (spec.get("resources") or {}).get("limits") or {}
    return f" (limit {limits['memory']})" if "memory" in limits else ""


def _with_message(description: str, message: str) -> str:
    return f"{description}: {message.strip().rstrip('.')}" if message.strip() else description
