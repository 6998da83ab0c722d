"""What the cluster says of a job, its pods and their events, as a JobState. Pure functions.

A job's own word is one voice of several: Failed outweighs Succeeded, and of each replica the newest pod counts.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kubetrain_components.jobs.job import LABEL_PREFIX, JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.job_kinds import REPLICA_INDEX_LABEL, REPLICA_TYPE_LABEL, JobKind
from kubetrain_components.jobs.kubernetes.manifests import replica_specs
from kubetrain_components.jobs.kubernetes.pod_end import (
    container_status,
    has_ended,
    is_cut_off,
    newest_end,
    restart_count,
    seconds,
    status_of,
    was_disrupted,
)
from kubetrain_components.jobs.kubernetes.troubles import is_suspended, troubles
from kubetrain_components.manifest import Manifest

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


def job_state(kind: JobKind, job: Manifest, pods: Iterable[Manifest], events: Iterable[Manifest] = ()) -> JobState:
    """The state, of pods that belong to this very job. Pods that are gone have "deleted": True on their manifest."""
    metadata = job["metadata"]
    handle = JobHandle(kind=kind, name=metadata["name"], uid=metadata["uid"])
    replicas = newest_pods(pod for pod in pods if is_of(pod, handle) and not _was_suspended(job, pod))
    newest = {name: history[-1] for name, history in replicas.items()}
    phase, message = _phase(job)
    return JobState(
        handle=handle,
        phase=phase,
        pods=tuple(pod_state(kind, history) for history in replicas.values()),
        missing=max(_least_pods(kind, job) - sum(not pod.get("deleted") for pod in newest.values()), 0),
        troubles=()
        if phase.is_final and all(map(has_ended, newest.values()))
        else tuple(troubles(job, newest, events)),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        message=message,
        is_deleting="deletionTimestamp" in metadata,
    )


def newest_pods(pods: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """By replica all the pods that there have been of it, the newest last."""
    found: dict[str, list[Manifest]] = {}
    for pod in sorted(pods, key=_age):
        found.setdefault(replica_name(pod), []).append(pod)
    return dict(sorted(found.items()))


def _age(pod: Manifest) -> tuple[float, bool, str]:
    """Two pods of one replica have the same second where one was deleted by force: then that is the older."""
    metadata = pod["metadata"]
    return seconds(metadata["creationTimestamp"]), not pod.get("deleted"), metadata["uid"]


def replica_name(pod: Manifest) -> str:
    """As people know it: worker-1; a batch Job's one pod by the stage."""
    return "{}-{}".format(*_replica(pod))


def _replica(pod: Manifest) -> tuple[str, int]:
    labels = pod["metadata"].get("labels") or {}
    if REPLICA_TYPE_LABEL in labels:
        return labels[REPLICA_TYPE_LABEL], int(labels.get(REPLICA_INDEX_LABEL, 0))
    return labels.get(LABEL_PREFIX + "role", "pod"), 0


def pod_state(kind: JobKind, history: Sequence[Manifest]) -> PodState:
    """Of the newest pod of a replica; earlier ones count as restarts."""
    role, index = _replica(history[-1])
    end = newest_end(kind.traits.container, history)
    return PodState(
        role=role.capitalize(),
        index=index,
        phase=_pod_phase(kind, history[-1]),
        restarts=len(history) - 1 + sum(restart_count(kind.traits.container, pod) for pod in history),
        exit_code=end.exit_code,
        last_words=end.words,
        cause=end.cause,
        was_disrupted=was_disrupted(history[-1]),
        finished=end.finished,
    )


def _pod_phase(kind: JobKind, pod: Manifest) -> Phase:
    """A pod that was deleted before it ended has not succeeded."""
    if has_ended(pod):
        return Phase(status_of(pod)["phase"])
    ended = (container_status(kind.traits.container, pod).get("state") or {}).get("terminated")
    if ended and not _starts_again(pod, ended["exitCode"]):
        return Phase.FAILED if ended["exitCode"] else Phase.SUCCEEDED  # the pod's own phase follows
    if pod.get("deleted"):
        return Phase.FAILED
    return Phase.RUNNING if status_of(pod).get("phase") == "Running" and not is_cut_off(pod) else Phase.PENDING


def _starts_again(pod: Manifest, exit_code: int) -> bool:
    policy = pod["spec"].get("restartPolicy", "Always")
    if "deletionTimestamp" in pod["metadata"]:
        return False
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def is_of(pod: Manifest, handle: JobHandle) -> bool:
    return any(owner["uid"] == handle.uid for owner in pod["metadata"].get("ownerReferences") or [])


def _phase(job: Manifest) -> tuple[Phase, str]:
    conditions = _conditions(job)
    for name, phase in PHASES:
        if (condition := conditions.get(name)) and condition["status"] == "True":
            return phase, condition.get("message") or "" if phase.is_final or phase is Phase.SUSPENDED else ""
    is_active = (job.get("status") or {}).get("active")
    if is_suspended(job) and not is_active:
        return Phase.SUSPENDED, ""
    return (Phase.RUNNING if is_active else Phase.PENDING), ""


def _conditions(job: Manifest) -> dict[str, Mapping[str, Any]]:
    return {each["type"]: each for each in (job.get("status") or {}).get("conditions") or []}


def _was_suspended(job: Manifest, pod: Manifest) -> bool:
    """Whether it was deleted because a queue took its leave back, which is no failure of the pod."""
    since = seconds(_conditions(job).get("Suspended", {}).get("lastTransitionTime"))
    return bool(pod.get("deleted")) and seconds(pod["metadata"]["creationTimestamp"]) < since


def _least_pods(kind: JobKind, job: Manifest) -> int:
    """As many as the job cannot begin without; a batch Job has one."""
    if elastic := job["spec"].get("elasticPolicy"):
        return int(elastic.get("minReplicas", 1))
    return sum(int(each.get("replicas", 1)) for each in replica_specs(kind, job).values())
