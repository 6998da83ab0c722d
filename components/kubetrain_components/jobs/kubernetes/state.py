"""The state of a job, derived from the manifests of the job, its pods and their events. Pure functions.

The job's own status is not enough: Failed overrides Succeeded, and the newest pod of each replica counts as well.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from kubetrain_components.jobs.annotations import LABEL_PREFIX
from kubetrain_components.jobs.conditions import conditions_of
from kubetrain_components.jobs.etcd_settings import ETCD_STAGE
from kubetrain_components.jobs.job_kinds import REPLICA_INDEX_LABEL, REPLICA_TYPE_LABEL, JobKind
from kubetrain_components.jobs.job_state import JobHandle, JobState, Phase, PodState
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import (
    INDEX_ANNOTATION,
    INSTANCE_LABEL,
    NEEDS_FIRST_ANNOTATION,
)
from kubetrain_components.jobs.kubernetes.manifests.pod_counts import needed_pods
from kubetrain_components.jobs.kubernetes.pod_end import (
    container_status,
    has_ended,
    is_cut_off,
    lingering_containers,
    newest_end,
    restart_count,
    seconds,
    started_at,
    status_of,
    was_deleted,
    was_disrupted,
    was_taken,
)
from kubetrain_components.jobs.kubernetes.queue_troubles import is_suspended
from kubetrain_components.jobs.kubernetes.troubles import pod_troubles, troubles
from kubetrain_components.jobs.troubles import Trouble
from kubetrain_components.manifest import Manifest

# Failed comes first: it decides even if Succeeded is True as well.
PHASES = (
    ("Failed", Phase.FAILED),
    ("FailureTarget", Phase.RUNNING),
    ("Succeeded", Phase.SUCCEEDED),
    ("Complete", Phase.SUCCEEDED),
    ("Suspended", Phase.SUSPENDED),
    ("Running", Phase.RUNNING),
    ("Restarting", Phase.RUNNING),
)


def job_state(
    kind: JobKind,
    job: Manifest,
    pods: Iterable[Manifest],
    events: Iterable[Manifest] = (),
    queues: Sequence[Manifest] | None = None,
    etcd: Iterable[Manifest] = (),
) -> JobState:
    """Return the state of a job, without pods of other jobs. Deleted pods have "deleted": True in their manifest.

    Args:
        queues: The LocalQueues of Kueue that have the name of the job's; None if they are unknown.
        etcd: The pods of the job's own etcd.
    """
    metadata = job["metadata"]
    handle = JobHandle(kind=kind, name=metadata["name"], uid=metadata["uid"])
    replicas = pods_by_replica(pod for pod in pods if is_of(pod, job) and not was_suspended(job, pod))
    newest = {name: history[-1] for name, history in replicas.items()}
    phase, message = _phase(job)
    is_over = phase.is_final and all(map(has_ended, newest.values()))
    return JobState(
        handle=handle,
        phase=phase,
        pods=tuple(pod_state(kind, history) for history in replicas.values()),
        needed=needed_pods(kind, job),
        succeeds_with_any="elasticPolicy" in job["spec"],
        needs_first=(metadata.get("annotations") or {}).get(NEEDS_FIRST_ANNOTATION) != "false",
        troubles=() if is_over else (*troubles(kind, job, newest, events, queues), *_etcd_troubles(etcd)),
        labels=metadata.get("labels") or {},
        annotations=metadata.get("annotations") or {},
        message=message,
        is_deleting="deletionTimestamp" in metadata,
    )


def _etcd_troubles(pods: Iterable[Manifest]) -> Iterator[Trouble]:
    for pod in pods:
        if not has_ended(pod):
            yield from pod_troubles(ETCD_STAGE, pod)


def pods_by_replica(pods: Iterable[Manifest]) -> dict[str, list[Manifest]]:
    """Return all pods of each replica, the newest last."""
    found: dict[str, list[Manifest]] = {}
    for pod in sorted(pods, key=_age):
        found.setdefault(replica_name(pod), []).append(pod)
    return dict(sorted(found.items()))


def _age(pod: Manifest) -> tuple[float, bool, str]:
    """Return a sort key. A force-deleted pod and its replacement may have the same creation time."""
    metadata = pod["metadata"]
    return seconds(metadata["creationTimestamp"]), not pod.get("deleted"), metadata["uid"]


def replica_name(pod: Manifest) -> str:
    """Return a name such as worker-1; the pod of a batch Job is named after its stage."""
    return "{}-{}".format(*_replica(pod))


def _replica(pod: Manifest) -> tuple[str, int]:
    labels, annotations = (pod["metadata"].get(field) or {} for field in ("labels", "annotations"))
    if REPLICA_TYPE_LABEL in labels:
        return labels[REPLICA_TYPE_LABEL], int(labels.get(REPLICA_INDEX_LABEL, 0))
    return labels.get(LABEL_PREFIX + "role", "pod"), int(annotations.get(INDEX_ANNOTATION, 0))


def pod_state(kind: JobKind, history: Sequence[Manifest]) -> PodState:
    """Return the state of the newest pod of a replica; earlier pods count as restarts."""
    role, index = _replica(history[-1])
    end = newest_end(kind.traits.container, history)
    phase = _pod_phase(kind, history[-1])
    return PodState(
        role=role.capitalize(),
        index=index,
        phase=phase,
        restarts=len(history) - 1 + sum(restart_count(kind.traits.container, pod) for pod in history),
        exit_code=end.exit_code,
        last_words=end.message,
        cause=end.cause,
        was_disrupted=was_disrupted(history[-1]),
        was_deleted=was_deleted(kind.traits.container, history[-1]),
        is_lost=_is_lost(phase, history),
        replacements=sum(map(was_taken, history[:-1])),
        is_terminating=_is_terminating(history[-1]),
        lingering=lingering_containers(kind.traits.container, history[-1]) if phase.is_final else (),
        finished=end.finished,
        started=started_at(kind.traits.container, history[-1]),
        image_id=container_status(kind.traits.container, history[-1]).get("imageID", ""),
    )


def _is_lost(phase: Phase, history: Sequence[Manifest]) -> bool:
    awaits_replacement = phase is Phase.PENDING and any(map(was_taken, history[-2:-1]))
    return awaits_replacement or was_taken(history[-1]) or is_cut_off(history[-1])


def _pod_phase(kind: JobKind, pod: Manifest) -> Phase:
    """Return the phase; a pod that was deleted before it ended has failed."""
    if has_ended(pod):
        return Phase(status_of(pod)["phase"])
    ended = (container_status(kind.traits.container, pod).get("state") or {}).get("terminated")
    if ended and not _will_restart(pod, ended["exitCode"]):
        return Phase.FAILED if ended["exitCode"] else Phase.SUCCEEDED  # the pod's own phase is updated later
    if pod.get("deleted"):
        return Phase.FAILED
    return Phase.RUNNING if status_of(pod).get("phase") == "Running" and not is_cut_off(pod) else Phase.PENDING


def _will_restart(pod: Manifest, exit_code: int) -> bool:
    policy = pod["spec"].get("restartPolicy", "Always")
    if "deletionTimestamp" in pod["metadata"]:
        return False
    return policy == "Always" or (policy == "OnFailure" and exit_code != 0)


def _is_terminating(pod: Manifest) -> bool:
    is_out_of_reach = has_ended(pod) or pod.get("deleted") or is_cut_off(pod)  # no grace period ends those
    return not is_out_of_reach and (was_disrupted(pod) or "deletionTimestamp" in pod["metadata"])


def is_of(pod: Manifest, job: Manifest) -> bool:
    """Return True if the pod is of this job. A TrainJob owns its pods only through other objects."""
    if instance := (job["metadata"].get("labels") or {}).get(INSTANCE_LABEL):
        return bool((pod["metadata"].get("labels") or {}).get(INSTANCE_LABEL) == instance)
    return any(owner["uid"] == job["metadata"]["uid"] for owner in pod["metadata"].get("ownerReferences") or [])


def was_suspended(job: Manifest, pod: Manifest) -> bool:
    """Return True if the pod was deleted because a queue evicted the job, which is not a failure."""
    since = seconds(_conditions(job).get("Suspended", {}).get("lastTransitionTime"))
    return bool(pod.get("deleted")) and seconds(pod["metadata"]["creationTimestamp"]) < since


def _phase(job: Manifest) -> tuple[Phase, str]:
    conditions = _conditions(job)
    for name, phase in PHASES:
        if (condition := conditions.get(name)) and condition["status"] == "True":
            return phase, condition.get("message") or "" if phase.is_final or phase is Phase.SUSPENDED else ""
    status = job.get("status") or {}
    is_active = status.get("active") or any(item.get("active") for item in status.get("jobsStatus") or [])
    if is_suspended(job) and not is_active:
        return Phase.SUSPENDED, ""
    return (Phase.RUNNING if is_active else Phase.PENDING), ""


def _conditions(job: Manifest) -> dict[str, Mapping[str, Any]]:
    return {condition["type"]: condition for condition in conditions_of(job)}
