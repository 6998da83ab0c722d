"""The reason that a queue of Kueue or Volcano does not admit a job: no room yet, or one that stays. Pure functions."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.pod_template import KUEUE_LABEL
from kubetrain_components.jobs.troubles import Trouble, TroubleKind
from kubetrain_components.manifest import Manifest

IMPOSSIBLE = re.compile(
    "> maximum capacity|unavailable in ClusterQueue|untolerated taint|doesn't match node affinity"
    "|ClusterQueue .* not found|namespace doesn't match"
)
"""Kueue's words for a flavor or a queue that the job cannot use even when it is empty."""
POSSIBLE = re.compile("unused quota|more needed|preempt", re.IGNORECASE)
"""Its words for a flavor that has room once other jobs have ended."""

VOLCANOS = ("PodGroup", "Normal", "Unschedulable")
"""Object, type and reason of Volcano's explanations."""


def queue_troubles(
    kind: JobKind,
    job: Manifest,
    pods: Mapping[str, Manifest],
    events: Iterable[Manifest],
    queues: Sequence[Manifest] | None,
) -> Iterator[Trouble]:
    """Yield the queue as the trouble, or the explanation of its last event, with another subject."""
    if queue := _queue_before(job, pods):
        explanations = [event for event in events if _is_of_queue(kind, job, event)]
        for event in explanations[-1:]:
            message, subject = event.get("message") or "", f"the job's {event['involvedObject']['kind']}"
            is_impossible = IMPOSSIBLE.search(message) and not POSSIBLE.search(message)
            yield _trouble(is_impossible, subject, f"{queue}: {message}")
        if not explanations:
            problem = "" if queues is None else _problem(kind, queues)
            yield _trouble(problem, "the job", f"{queue}: {problem}" if problem else queue)
    elif is_suspended(job):
        yield Trouble(kind=TroubleKind.SUSPENDED, subject="the job", evidence="spec.suspend is true")


def is_suspended(job: Manifest) -> bool:
    spec = job["spec"]
    return bool(spec.get("suspend") or (spec.get("runPolicy") or {}).get("suspend"))


def _queue_before(job: Manifest, pods: Mapping[str, Manifest]) -> str:
    """Return the queue that the job still waits in."""
    queue = (job["metadata"].get("labels") or {}).get(KUEUE_LABEL)
    if queue and is_suspended(job):
        return f"Kueue's queue {queue}"
    gang = (job["spec"].get("runPolicy") or {}).get("schedulingPolicy") or {}
    if gang and not pods and "scheduleTimeoutSeconds" not in gang:  # no pod is created until Volcano admits them
        return f"Volcano's queue {gang.get('queue', 'default')}"
    return ""


def _is_of_queue(kind: JobKind, job: Manifest, event: Manifest) -> bool:
    """Return True for the explanations of Kueue and Volcano.

    They are events of the job's Workload, which is named after it, or PodGroup, which has its name. Kueue's reasons
    differ between versions; Volcano's warnings explain nothing.
    """
    concerned = event.get("involvedObject") or {}
    name = f"({kind.lower()}-)?{re.escape(job['metadata']['name'])}(-[0-9a-f]{{5}})?"
    source = concerned.get("kind"), event.get("type")
    explains = source == ("Workload", "Warning") or (*source, event.get("reason")) == VOLCANOS
    return explains and re.fullmatch(name, concerned.get("name", "")) is not None


def _problem(kind: JobKind, queues: Sequence[Manifest]) -> str:
    """Return why the queue admits no job, or does not know this one. An administrator may pause a queue for a while."""
    if not queues:
        return "it does not exist in this namespace"
    status = queues[0].get("status") or {}
    active = [each for each in status.get("conditions") or [] if each["type"] == "Active"]
    if [each for each in active if each.get("reason") == "ClusterQueueDoesNotExist"]:
        return f"its ClusterQueue {queues[0]['spec']['clusterQueue']} does not exist"
    if [each for each in active if each["status"] == "True"] and status.get("pendingWorkloads") == 0:
        return f"no job is pending in it, so Kueue may not manage {kind.value}s"
    return ""


def _trouble(is_impossible: object, subject: str, evidence: str) -> Trouble:
    kind = TroubleKind.NEVER_ADMITTED if is_impossible else TroubleKind.QUEUE
    return Trouble(kind=kind, subject=subject, evidence=evidence.strip().rstrip("."))
