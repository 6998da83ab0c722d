"""The reason that a queue of Kueue or Volcano does not admit a job: no room yet, or one that stays. Pure functions."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kubetrain_components.jobs.annotations import KUEUE_LABEL
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.pod_end import last_seen, seconds
from kubetrain_components.jobs.troubles import JOB, Trouble, TroubleKind
from kubetrain_components.manifest import Manifest

IMPOSSIBLE = re.compile(
    "> maximum capacity|unavailable in ClusterQueue|untolerated taint|doesn't match node affinity"
    "|ClusterQueue .* not found|namespace doesn't match"
)
"""Kueue's words for a flavor or a queue that the job cannot use even when it is empty."""
POSSIBLE = re.compile("unused quota|more needed|preempt", re.IGNORECASE)
"""Its words for a flavor that has room once other jobs have ended."""

CUT = " ..."
"""The end of a message that Kueue has cut off."""
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
        if explanations:
            last = explanations[-1]
            is_hopeless = all(map(_is_impossible, explanations))  # each may be about other flavors
            yield _trouble(
                is_hopeless, f"the job's {_concerned(last)['kind']}", f"{queue}: {last.get('message') or ''}"
            )
        else:
            problem = "" if queues is None else _problem(kind, queues)
            yield _trouble(bool(problem), JOB, f"{queue}: {problem}" if problem else queue)
    elif is_suspended(job):
        yield Trouble(kind=TroubleKind.SUSPENDED, subject=JOB, evidence="spec.suspend is true")


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

    They are events of the job's Workload, which is named after it, or PodGroup, which has its name; older ones are
    about an earlier job of the same name. Kueue's reasons differ between versions; Volcano's warnings explain nothing.
    """
    source = _concerned(event).get("kind"), event.get("type")
    explains = source == ("Workload", "Warning") or (*source, event.get("reason")) == VOLCANOS
    name = f"({kind.lower()}-)?{re.escape(job['metadata']['name'])}(-[0-9a-f]{{5}})?"
    is_new = last_seen(event) >= seconds(job["metadata"].get("creationTimestamp"))
    return explains and is_new and re.fullmatch(name, _concerned(event).get("name", "")) is not None


def _concerned(event: Manifest) -> Manifest:
    concerned: Manifest = event.get("involvedObject") or {}
    return concerned


def _is_impossible(event: Manifest) -> bool:
    message = event.get("message") or ""
    is_whole = _concerned(event)["kind"] == "Workload" and not message.endswith(CUT)
    return is_whole and IMPOSSIBLE.search(message) is not None and POSSIBLE.search(message) is None


def _problem(kind: JobKind, queues: Sequence[Manifest]) -> str:
    """Return why the queue admits no job, or does not know this one. An administrator may pause a queue for a while."""
    if not queues:
        return "it does not exist in this namespace"
    status = queues[0].get("status") or {}
    active = [condition for condition in status.get("conditions") or [] if condition["type"] == "Active"]
    if [item for item in active if item.get("reason") == "ClusterQueueDoesNotExist"]:
        return f"its ClusterQueue '{(queues[0].get('spec') or {}).get('clusterQueue', '')}' does not exist"
    if [item for item in active if item["status"] == "True"] and not _has_waiting(status):
        return f"no job is pending in it, so Kueue may not manage {kind.value}s"
    return ""


def _has_waiting(status: Manifest) -> bool:
    """Return True if a job waits, perhaps only for an admission check, or if that is unknown."""
    pending, reserving, admitted = (status.get(f"{name}Workloads") for name in ("pending", "reserving", "admitted"))
    return pending != 0 or reserving is None or reserving != admitted


def _trouble(is_impossible: bool, subject: str, evidence: str) -> Trouble:
    kind = TroubleKind.NEVER_ADMITTED if is_impossible else TroubleKind.QUEUE
    return Trouble(kind=kind, subject=subject, evidence=evidence.strip().rstrip("."))
