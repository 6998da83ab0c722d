"""What the cluster says of a job, its pods and their events, as a JobState. Pure functions.

A job's own word is one voice of several: Failed outweighs Succeeded, and of each replica the newest pod counts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from kubetrain_components.jobs.job import JobHandle, JobKind, JobState, Phase, PodState, Trouble, TroubleKind
from kubetrain_components.jobs.pod_template import CONTAINERS, Manifest

REPLICA_TYPE, REPLICA_INDEX = "training.kubeflow.org/replica-type", "training.kubeflow.org/replica-index"
# Failed first: both may be True, and then it did fail.
PHASES = (
    ("Failed", Phase.FAILED),
    ("FailureTarget", Phase.RUNNING),
    ("Succeeded", Phase.SUCCEEDED),
    ("Complete", Phase.SUCCEEDED),
    ("Suspended", Phase.SUSPENDED),
    ("Running", Phase.RUNNING),
    ("Restarting", Phase.RUNNING),
)
WAITING = {
    "ErrImagePull": TroubleKind.IMAGE_PULL,
    "ImagePullBackOff": TroubleKind.IMAGE_PULL,
    "ErrImageNeverPull": TroubleKind.IMAGE_PULL,
    "RegistryUnavailable": TroubleKind.IMAGE_PULL,
    "InvalidImageName": TroubleKind.BAD_IMAGE_NAME,
    "CreateContainerConfigError": TroubleKind.CONFIGURATION,
    "CreateContainerError": TroubleKind.CONFIGURATION,
    "RunContainerError": TroubleKind.CONFIGURATION,
    "CrashLoopBackOff": TroubleKind.CRASH_LOOP,
}
"""By the reason that a container is waiting for."""
EVENTS = (
    (r"violates PodSecurity|admission webhook|is forbidden(?!.*quota)|[Ff]orbidden: (?!exceeded)", TroubleKind.REFUSED),
    (r"exceeded quota|failed quota", TroubleKind.QUOTA),
    (r"FailedMount|FailedAttachVolume|MountVolume|AttachVolume", TroubleKind.VOLUME),
)
"""By what is in an event's reason or message; the first that fits."""
LOST = {
    "Evicted": "was evicted",
    "Preempted": "was preempted by pods of a higher priority",
    "Preempting": "was preempted by pods of a higher priority",
    "NodeLost": "was lost with its node",
    "NodeShutdown": "was ended with its node",
    "Terminated": "was ended with its node",
    "DeadlineExceeded": "was ended at the deadline",
    "OutOfcpu": "was refused by its node, which has no free processor",
    "OutOfmemory": "was refused by its node, which has no free memory",
    "UnexpectedAdmissionError": "was refused by its node",
}
"""By a failed pod's reason, or that of its DisruptionTarget."""
DISRUPTIONS = {
    "PreemptionByScheduler": "was preempted by pods of a higher priority",
    "DeletionByTaintManager": "was deleted because of a taint of its node",
    "EvictionByEvictionAPI": "was evicted, as when a node is drained",
    "DeletionByPodGC": "was lost with its node",
    "TerminationByKubelet": "was evicted by its node",
}


def job_state(kind: JobKind, job: Manifest, pods: Iterable[Manifest], events: Iterable[Manifest] = ()) -> JobState:
    """The state, of pods that belong to this very job."""
    metadata = job["metadata"]
    handle = JobHandle(kind=kind, name=metadata["name"], uid=metadata["uid"])
    newest = newest_pods(pod for pod in pods if is_of(pod, handle))
    phase, message = _phase(job)
    return JobState(
        handle=handle,
        phase=phase,
        pods=tuple(pod_state(kind, history) for history in newest.values()),
        troubles=() if phase.is_final else tuple(_troubles(kind, job, newest, list(events))),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        message=message,
        is_deleting="deletionTimestamp" in metadata,
    )


def newest_pods(pods: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """By replica all the pods that there have been of it, the newest last."""
    found: dict[str, list[Manifest]] = {}
    for pod in sorted(pods, key=lambda pod: (pod["metadata"]["creationTimestamp"], pod["metadata"]["uid"])):
        found.setdefault(replica_name(pod), []).append(pod)
    return dict(sorted(found.items()))


def replica_name(pod: Manifest) -> str:
    """As people know it: worker-1; a batch Job's one pod by the stage."""
    return "{}-{}".format(*_replica(pod))


def _replica(pod: Manifest) -> tuple[str, int]:
    labels = pod["metadata"].get("labels") or {}
    if REPLICA_TYPE in labels:
        return labels[REPLICA_TYPE], int(labels.get(REPLICA_INDEX, 0))
    return labels.get("kubetrain/role", "pod"), 0


def pod_state(kind: JobKind, history: Sequence[Manifest]) -> PodState:
    """Of the newest pod of a replica; earlier ones count as restarts, and speak while it has nothing to say."""
    pod = history[-1]
    role, index = _replica(pod)
    statuses = [_container_status(kind, each) for each in history]
    ended = next((end for status in reversed(statuses) if (end := _newest_end(status))), {})
    return PodState(
        role=role.capitalize(),
        index=index,
        phase=_pod_phase(kind, pod),
        restarts=len(history) - 1 + sum(status.get("restartCount", 0) for status in statuses),
        exit_code=ended.get("exitCode"),
        last_words=ended.get("message") or "",
        cause=_cause(history, ended),
        finished=_seconds(ended.get("finishedAt")),
    )


def _phase(job: Manifest) -> tuple[Phase, str]:
    conditions = {each["type"]: each for each in (job.get("status") or {}).get("conditions") or []}
    for name, phase in PHASES:
        if (condition := conditions.get(name)) and condition["status"] == "True":
            return phase, condition.get("message") or "" if phase.is_final or phase is Phase.SUSPENDED else ""
    status = job.get("status") or {}
    if (job["spec"].get("suspend") or (job["spec"].get("runPolicy") or {}).get("suspend")) and not status.get("active"):
        return Phase.SUSPENDED, ""
    return (Phase.RUNNING if status.get("active") else Phase.PENDING), ""


def is_of(pod: Manifest, handle: JobHandle) -> bool:
    return any(owner["uid"] == handle.uid for owner in pod["metadata"].get("ownerReferences") or [])


def _container_status(kind: JobKind, pod: Manifest) -> Mapping[str, Any]:
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    return next((each for each in statuses if each["name"] == CONTAINERS[kind]), {})


def _newest_end(status: Mapping[str, Any]) -> Mapping[str, Any]:
    for state in ("state", "lastState"):
        if ended := (status.get(state) or {}).get("terminated"):
            return dict(ended)
    return {}


def _pod_phase(kind: JobKind, pod: Manifest) -> Phase:
    """A pod that was deleted before it ended has not succeeded."""
    if has_ended(pod):
        return Phase(pod["status"]["phase"])
    ended = (_container_status(kind, pod).get("state") or {}).get("terminated")
    if ended and not _starts_again(pod, ended["exitCode"]):
        return Phase.FAILED if ended["exitCode"] else Phase.SUCCEEDED  # its phase follows
    if pod.get("deleted"):
        return Phase.FAILED
    return Phase.RUNNING if (pod.get("status") or {}).get("phase") == "Running" else Phase.PENDING


def _starts_again(pod: Manifest, exit_code: int) -> bool:
    policy = pod["spec"].get("restartPolicy", "Always")
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _cause(history: Sequence[Manifest], ended: Mapping[str, Any]) -> str:
    pod = history[-1] if len(history) == 1 or _is_lost(history[-1]) else history[-2]
    status = pod.get("status") or {}
    for condition in status.get("conditions") or []:
        if condition["type"] == "DisruptionTarget" and condition["status"] == "True":
            said = DISRUPTIONS.get(condition.get("reason", ""), "was disrupted")
            return _with_words(said, condition.get("message", ""))
    if (reason := status.get("reason", "")) in LOST:
        return _with_words(LOST[reason], status.get("message", ""))
    if ended.get("reason") == "OOMKilled":
        return f"ran out of memory{_memory_limit(pod)}: raise memory, or lower batch_size or loader_workers"
    if ended.get("reason") in ("StartError", "ContainerCannotRun"):
        return _with_words("could not be started", ended.get("message", ""))
    if pod.get("deleted") and not has_ended(pod):
        return "was deleted while it ran"
    return ""


def _is_lost(pod: Manifest) -> bool:
    return bool(pod.get("deleted")) or (pod.get("status") or {}).get("phase") == "Failed"


def has_ended(pod: Manifest) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _memory_limit(pod: Manifest) -> str:
    limits = (pod["spec"]["containers"][0].get("resources") or {}).get("limits") or {}
    return f", of which it may use {limits['memory']}" if "memory" in limits else ""


def _with_words(said: str, message: str) -> str:
    return f"{said}: {message.strip().rstrip('.')}" if message.strip() else said


def _troubles(
    kind: JobKind, job: Manifest, replicas: Mapping[str, Sequence[Manifest]], events: Sequence[Manifest]
) -> list[Trouble]:
    found = [trouble for name, history in replicas.items() for trouble in _pod_troubles(name, history[-1])]
    pending = {
        history[-1]["metadata"]["uid"]: name
        for name, history in replicas.items()
        if _pod_phase(kind, history[-1]) is Phase.PENDING
    }
    names = {job["metadata"]["uid"]: "the job", **pending}
    for event in events:
        concerned = names.get((event.get("involvedObject") or {}).get("uid", ""))
        if concerned and (trouble := _event_trouble(concerned, event)) is not None:
            found.append(trouble)
    return list(dict.fromkeys(found))


def _pod_troubles(name: str, pod: Manifest) -> list[Trouble]:
    status = pod.get("status") or {}
    found = []
    for condition in status.get("conditions") or []:
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            found.append(_trouble(TroubleKind.UNSCHEDULABLE, name, condition.get("message", "")))
    for container in [*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])]:
        waiting = (container.get("state") or {}).get("waiting") or {}
        if (kind := WAITING.get(waiting.get("reason", ""))) is not None:
            image = f"{container['image']}: " if kind in (TroubleKind.IMAGE_PULL, TroubleKind.BAD_IMAGE_NAME) else ""
            found.append(_trouble(kind, name, f"{image}{waiting.get('message') or waiting['reason']}"))
    return found


def _event_trouble(name: str, event: Manifest) -> Trouble | None:
    if event.get("type") != "Warning":
        return None
    text = f"{event.get('reason', '')} {event.get('message', '')}"
    kind = next((kind for pattern, kind in EVENTS if re.search(pattern, text)), None)
    return _trouble(kind, name, event.get("message", "")) if kind else None


def _trouble(kind: TroubleKind, name: str, message: str) -> Trouble:
    return Trouble(kind=kind, subject=name, sentence=f"{name}: {kind.value} ({message.strip().rstrip('.')})")


def _seconds(timestamp: str | None) -> float:
    return datetime.fromisoformat(timestamp).timestamp() if timestamp else 0.0
