"""Decide which exposed PVCs and staged versions to delete. Anything uncertain is kept."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from kubetrain_components.expose_dataset.expose import (
    DATASET_LABEL,
    LAST_USED_ANNOTATION,
    SOURCE_ANNOTATION,
    is_exposed,
    version_path,
)
from kubetrain_components.manifest import Manifest

YOUNG = timedelta(days=1)
OVER_PHASES = ("Succeeded", "Failed", "Bound")
"""Phases in which a pod no longer uses its volumes, and a PVC no longer needs its source."""
OVER_CONDITIONS = ("Succeeded", "Failed", "Complete", "Completed")
"""Conditions of jobs that start no more pods: the training operator's, batch, TrainJob and JobSet."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """An active object that needs a version, named by its digest or mounted from a PVC."""

    by: str
    digest: str = ""
    claim: str = ""
    sub_path: str = ""
    """Path on the PVC's volume; empty: the whole volume."""


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """A PVC that exposes one version, or a version on the staging volume."""

    kind: str
    """PVC or version"""
    name: str
    digest: str
    source: str
    last_used: datetime | None
    """When a run last created or used it; None: unreadable."""
    claim: str
    """The PVC that has it."""
    path: str = ""
    """Its path on the volume of the PVC; empty: the whole volume."""
    is_deleting: bool = False
    preconditions: Mapping[str, str] = field(default_factory=dict)
    """uid and resourceVersion, so that an item used or recreated after the plan is not deleted."""


@dataclass(frozen=True)
class PruneDecision:
    item: Prunable
    deletes: bool
    reason: str

    def __str__(self) -> str:
        return f"{'delete' if self.deletes else 'keep'} {self.item.kind} {self.item.name}: {self.reason}"


def exposed_claims(claims: Iterable[Manifest]) -> list[Prunable]:
    """Return the PVCs that kubetrain created to expose a version; others are never pruned."""
    return [_prunable(claim) for claim in claims if is_exposed(claim)]


def staged_versions(headers: Iterable[Mapping[str, Any]], claim: str, last_used: Mapping[str, str]) -> list[Prunable]:
    """Return the versions with these manifest headers.

    Args:
        claim: Name of the staging PVC.
        last_used: Time at which a run last reused each version, by digest; headers do not record it.
    """
    return [_staged_version(header, claim, last_used) for header in headers]


def uses_of(objects: Iterable[Manifest], now: datetime) -> list[Use]:
    """Return the uses of versions by active pods, jobs of any kind, and PVCs.

    Jobs count in addition to pods, because a job has no pods while it is queued or between two attempts. A job that
    ended less than a day ago still needs the version on its label, because its run may have to evaluate the model.
    """
    return [use for item in objects for use in (_uses_after_end(item, now) if _is_over(item) else _uses(item))]


def plan_pruning(
    items: Iterable[Prunable], uses: list[Use], *, keep: int, current: str, now: datetime
) -> list[PruneDecision]:
    """Decide what to delete, keeping the newest items of each source."""
    decisions = list[PruneDecision]()
    for _, group in groupby(sorted(items, key=_group), key=_group):
        decisions += _decide(list(group), uses, keep, current, now)
    return decisions


def _prunable(claim: Manifest) -> Prunable:
    metadata = claim["metadata"]
    annotations = metadata.get("annotations") or {}
    return Prunable(
        kind="PVC",
        name=metadata["name"],
        digest=metadata["labels"][DATASET_LABEL],
        source=annotations.get(SOURCE_ANNOTATION, ""),
        last_used=_later(metadata.get("creationTimestamp"), annotations.get(LAST_USED_ANNOTATION)),
        claim=metadata["name"],
        is_deleting=bool(metadata.get("deletionTimestamp")),
        preconditions={key: metadata[key] for key in ("uid", "resourceVersion")},
    )


def _staged_version(header: Mapping[str, Any], claim: str, last_used: Mapping[str, str]) -> Prunable:
    path = version_path(header["digest"])
    return Prunable(
        kind="version",
        name=path,
        digest=header["digest"],
        source=header["source"],
        last_used=_later(header["created"], last_used.get(header["digest"])),
        claim=claim,
        path=path,
    )


def _later(created: object, used: object) -> datetime | None:
    """Return the later time; None if either is unreadable. An empty `used` counts as never."""
    times = [_parse_time(text) for text in (created, used or created)]
    return max(time for time in times if time) if all(times) else None


def _parse_time(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else None


def _is_over(each: Manifest) -> bool:
    status = each.get("status") or {}
    if status.get("phase") in OVER_PHASES:
        return True
    conditions = status.get("conditions") or []
    return any(
        condition.get("type") in OVER_CONDITIONS and condition.get("status") == "True" for condition in conditions
    )


def _uses_after_end(each: Manifest, now: datetime) -> Iterator[Use]:
    conditions = (each.get("status") or {}).get("conditions") or []
    ends = [_parse_time(condition.get("lastTransitionTime")) for condition in conditions]
    digest = (each["metadata"].get("labels") or {}).get(DATASET_LABEL, "")
    if digest and "accessModes" not in each["spec"] and any(end and now - end < YOUNG for end in ends):
        yield Use(by=f"{_name(each)}, which ended less than a day ago", digest=digest)


def _name(each: Manifest) -> str:
    return f"{each.get('kind') or 'pod or job'} {each['metadata'].get('name', '')}"


def _uses(each: Manifest) -> Iterator[Use]:
    spec, labels = each.get("spec") or {}, each["metadata"].get("labels") or {}
    digest = labels.get(DATASET_LABEL, "")
    by, path = _name(each), version_path(digest) if digest else ""
    if "accessModes" in spec:
        origin = spec.get("dataSource") or {}
        if origin.get("kind") == "PersistentVolumeClaim":
            # A class that waits for a pod copies the source only then, in the state that it has at that time.
            yield Use(by=f"{by}, which is not filled yet", claim=origin["name"], sub_path=path)
        return
    if digest:
        yield Use(by=by, digest=digest)
    for pod in _pod_specs(spec):
        for claim, sub_path in _mounted(pod):
            yield Use(by=by, claim=claim, sub_path=sub_path)


def _pod_specs(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the pod specs with volumes at any depth: each kind has its pod templates in another field."""
    if isinstance(node, list):
        for item in node:
            yield from _pod_specs(item)
    elif isinstance(node, Mapping):
        if "volumes" in node:
            yield node
        yield from _pod_specs(list(node.values()))


def _mounted(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the PVCs of a pod with their mounted paths; a mount without subPath counts as the whole volume."""
    kinds = ("containers", "initContainers", "ephemeralContainers")
    containers = [item for kind in kinds for item in pod.get(kind) or []]
    mounts = [mount for container in containers for mount in container.get("volumeMounts") or []]
    for volume in pod["volumes"] or []:
        if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            paths = {mount.get("subPath") or "" for mount in mounts if mount["name"] == volume["name"]}
            yield from ((claim, path) for path in sorted(paths) or [""])


def _group(item: Prunable) -> tuple[str, str]:
    return item.kind, item.source.rstrip("/")


def _decide(items: list[Prunable], uses: list[Use], keep: int, current: str, now: datetime) -> Iterator[PruneDecision]:
    """Decide on the items, newest first; those of unknown age come last and do not count among the newest."""
    dated = [item for item in items if item.last_used is not None]
    ranked = sorted(dated, key=lambda item: (item.last_used, item.name), reverse=True)
    newest = [item.name for item in ranked if not item.is_deleting][:keep]
    for item in ranked + [item for item in items if item.last_used is None]:
        reason = _reason_to_keep(item, uses, current, now)
        if reason is None and item.name in newest:
            reason = f"among the {keep} newest"
        yield PruneDecision(item, reason is None, reason or f"not among the {keep} newest and not in use")


def _reason_to_keep(item: Prunable, uses: list[Use], current: str, now: datetime) -> str | None:
    if item.is_deleting:
        return "already being deleted"
    if item.digest == current:
        return "this run's version"
    if (use := next((use for use in uses if _concerns(use, item)), None)) is not None:
        return f"used by {use.by}"
    if item.last_used is None:
        return "its age is unknown"
    return "created or used less than a day ago" if now - item.last_used < YOUNG else None


def _concerns(use: Use, item: Prunable) -> bool:
    return use.digest == item.digest or (use.claim == item.claim and _overlap(use.sub_path, item.path))


def _overlap(one: str, other: str) -> bool:
    """Return True if one of the paths contains the other."""
    parts = zip(PurePosixPath(one).parts, PurePosixPath(other).parts, strict=False)
    return all(left == right for left, right in parts)
