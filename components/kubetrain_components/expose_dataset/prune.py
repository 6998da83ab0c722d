"""Which exposed claims and staged versions nobody needs any more. What is not known is not deleted."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from itertools import groupby
from pathlib import PurePosixPath
from typing import Any

from kubetrain_components.expose_dataset.expose import (
    DATASET_LABEL,
    EXPOSURE_LABEL,
    LAST_USED_ANNOTATION,
    SOURCE_ANNOTATION,
    ExposureMode,
    is_exposed,
    version_path,
)
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import InvalidSetting

YOUNG = timedelta(days=1)
OVER_PHASES = ("Succeeded", "Failed", "Bound")
"""Of pods that do not use a volume any more, and of claims that do not wait for their source any more."""
OVER_CONDITIONS = ("Succeeded", "Failed", "Complete", "Completed")
"""Of jobs that will not start another pod: the training operator's, batch, TrainJob and JobSet."""


@dataclass(frozen=True, kw_only=True)
class Use:
    """Something that is not over and needs a version, by its digest or through a claim."""

    by: str
    digest: str = ""
    claim: str = ""
    sub_path: str = ""
    """Of the claim's volume; empty: all of it."""


@dataclass(frozen=True, kw_only=True)
class Prunable:
    """A claim that exposes one version, or a version on the staging volume."""

    kind: str
    """claim, snapshot or version"""
    name: str
    digest: str
    source: str
    last_used: datetime | None
    """When it was made, or a run last took it; None: cannot be read."""
    seen_through: Mapping[str, str] = field(default_factory=dict)
    """From the claims that show it to its path on their volumes."""
    is_deleting: bool = False
    snapshot: str = ""
    """The VolumeSnapshot that the claim was made from, which goes with it."""
    preconditions: Mapping[str, str] = field(default_factory=dict)
    """For its deletion: whoever took or made it again meanwhile keeps it."""


@dataclass(frozen=True)
class Fate:
    item: Prunable
    is_deleted: bool
    reason: str

    def __str__(self) -> str:
        snapshot = f" and snapshot {self.item.snapshot}" if self.item.snapshot else ""
        return f"{'delete' if self.is_deleted else 'keep'} {self.item.kind} {self.item.name}{snapshot}: {self.reason}"


@dataclass(frozen=True)
class PrunePlan:
    fates: tuple[Fate, ...]

    @property
    def delete(self) -> tuple[Prunable, ...]:
        return tuple(fate.item for fate in self.fates if fate.is_deleted)

    def __str__(self) -> str:
        return "\n".join(map(str, self.fates))


def exposed_claims(claims: Iterable[Manifest]) -> list[Prunable]:
    """The claims among these that kubetrain made to expose a version; no other is ever pruned."""
    return [_prunable(claim) for claim in claims if is_exposed(claim)]


def orphaned_snapshots(snapshots: Iterable[Manifest], claims: Iterable[Manifest]) -> list[Prunable]:
    """Those that kubetrain made and that no claim was made from: a launcher was killed between both, or the pruning."""
    sources = {(claim["spec"].get("dataSource") or {}).get("name") for claim in claims}
    return [
        _prunable(each, kind="snapshot")
        for each in snapshots
        if is_exposed(each) and each["metadata"]["name"] not in sources
    ]


def staged_versions(
    headers: Iterable[Mapping[str, Any]], claims: Iterable[str], last_used: Mapping[str, str]
) -> list[Prunable]:
    """The versions with these manifest headers.

    Args:
        claims: those that show the staging volume: the staging claim, a static one.
        last_used: from digest to when a run last took a version that was there; a header never changes.
    """
    return [_staged_version(header, list(claims), last_used) for header in headers]


def uses_of(objects: Iterable[Manifest], now: datetime | None = None) -> list[Use]:
    """What pods, jobs of any kind and claims need, as far as they are not over.

    Jobs count beside their pods: one that waits in a queue, or between two attempts, has none. One that has just ended
    keeps the version on its label: its run goes on, and evaluation needs that too.
    """
    return [use for each in objects for use in (_lasting_uses(each, now) if _is_over(each) else _uses(each))]


def plan_pruning(
    items: Iterable[Prunable], uses: Iterable[Use], *, keep: int, current: str, now: datetime
) -> PrunePlan:
    """Which of these to delete, so that of each source the newest few stay. What is not known is not deleted.

    Raises:
        InvalidSetting: where keep is less than one version.
    """
    if not isinstance(keep, int) or isinstance(keep, bool) or keep < 1:
        raise InvalidSetting(f"keep_versions must be a whole number from 1 up, not {keep!r}")
    uses, fates = list(uses), list[Fate]()
    for _, group in groupby(sorted(items, key=_group), key=_group):
        fates += _fates(list(group), uses, keep, current, now)
    return PrunePlan(tuple(fates))


def _prunable(claim: Manifest, kind: str = "claim") -> Prunable:
    metadata = claim["metadata"]
    annotations = metadata.get("annotations") or {}
    is_snapshot = kind == "claim" and metadata["labels"][EXPOSURE_LABEL] == ExposureMode.SNAPSHOT
    return Prunable(
        kind=kind,
        name=metadata["name"],
        digest=metadata["labels"][DATASET_LABEL],
        source=annotations.get(SOURCE_ANNOTATION, ""),
        last_used=_later(metadata.get("creationTimestamp"), annotations.get(LAST_USED_ANNOTATION)),
        seen_through={metadata["name"]: ""},
        is_deleting=bool(metadata.get("deletionTimestamp")),
        snapshot=claim["spec"]["dataSource"]["name"] if is_snapshot else "",
        preconditions={key: metadata[key] for key in ("uid", "resourceVersion")},
    )


def _staged_version(header: Mapping[str, Any], claims: list[str], last_used: Mapping[str, str]) -> Prunable:
    path = version_path(header["digest"])
    return Prunable(
        kind="version",
        name=path,
        digest=header["digest"],
        source=header["source"],
        last_used=_later(header["created"], last_used.get(header["digest"])),
        seen_through=dict.fromkeys(claims, path),
    )


def _later(made: object, used: object) -> datetime | None:
    """The later of both; None where one that is there cannot be read."""
    times = [_time(text) for text in (made, used or made)]
    return max(time for time in times if time) if all(times) else None


def _time(text: object) -> datetime | None:
    try:
        time = datetime.fromisoformat(str(text))
    except ValueError:
        return None
    return time if time.tzinfo else None


def _is_over(each: Manifest) -> bool:
    status = each.get("status") or {}
    if status.get("phase") in OVER_PHASES or status.get("readyToUse"):
        return True
    conditions = status.get("conditions") or []
    return any(each.get("type") in OVER_CONDITIONS and each.get("status") == "True" for each in conditions)


def _lasting_uses(each: Manifest, now: datetime | None) -> Iterator[Use]:
    conditions = (each.get("status") or {}).get("conditions") or []
    ends = [_time(condition.get("lastTransitionTime")) for condition in conditions]
    digest = (each["metadata"].get("labels") or {}).get(DATASET_LABEL, "")
    if now and digest and "accessModes" not in each["spec"] and any(end and now - end < YOUNG for end in ends):
        yield Use(by=f"{_name(each)}, which ended less than a day ago", digest=digest)


def _name(each: Manifest) -> str:
    return f"{each.get('kind') or 'pod or job'} {each['metadata'].get('name', '')}"


def _uses(each: Manifest) -> Iterator[Use]:
    spec, labels = each.get("spec") or {}, each["metadata"].get("labels") or {}
    digest = labels.get(DATASET_LABEL, "")
    by = _name(each)
    if "persistentVolumeClaimName" in (source := spec.get("source") or {}):
        path = version_path(digest) if digest else ""
        yield Use(by=f"{by}, which is not taken yet", claim=source["persistentVolumeClaimName"], sub_path=path)
        return
    if "accessModes" in spec:
        origin = spec.get("dataSource") or {}
        if origin.get("kind") == "PersistentVolumeClaim":
            # Where a class waits for a pod, the copy is made only then: of what is on the source by that time.
            path = version_path(digest) if digest else ""
            yield Use(by=f"{by}, which is not filled yet", claim=origin["name"], sub_path=path)
        return
    if digest:
        yield Use(by=by, digest=digest)
    for pod in _pod_specs(spec):
        for claim, sub_path in _mounted(pod):
            yield Use(by=by, claim=claim, sub_path=sub_path)


def _pod_specs(node: Any) -> Iterator[Mapping[str, Any]]:
    """Those with volumes, wherever a kind keeps its pod templates: replica specs, template, jobTemplate."""
    if isinstance(node, list):
        for each in node:
            yield from _pod_specs(each)
    elif isinstance(node, Mapping):
        if "volumes" in node:
            yield node
        yield from _pod_specs(list(node.values()))


def _mounted(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The claims of a pod, each with the paths of its volume that are mounted; an unclear path is the whole volume."""
    kinds = ("containers", "initContainers", "ephemeralContainers")
    containers = [each for kind in kinds for each in pod.get(kind) or []]
    mounts = [mount for container in containers for mount in container.get("volumeMounts") or []]
    for volume in pod["volumes"] or []:
        if claim := (volume.get("persistentVolumeClaim") or {}).get("claimName"):
            paths = {mount.get("subPath") or "" for mount in mounts if mount["name"] == volume["name"]}
            yield from ((claim, path) for path in sorted(paths) or [""])


def _group(item: Prunable) -> tuple[str, str]:
    return item.kind, item.source


def _fates(items: list[Prunable], uses: list[Use], keep: int, current: str, now: datetime) -> Iterator[Fate]:
    """Newest first; those whose age cannot be read come last, and take no place among the newest."""
    dated = [item for item in items if item.last_used is not None]
    ranked = sorted(dated, key=lambda item: (item.last_used, item.name), reverse=True)
    newest = [item.name for item in ranked if not item.is_deleting][:keep]
    for item in ranked + [item for item in items if item.last_used is None]:
        reason = _reason_to_keep(item, uses, current, now)
        if reason is None and item.name in newest:
            reason = f"among the {keep} newest"
        yield Fate(item, reason is None, reason or f"not among the {keep} newest, and nothing uses it")


def _reason_to_keep(item: Prunable, uses: list[Use], current: str, now: datetime) -> str | None:
    if item.is_deleting:
        return "is being deleted already"
    if item.digest == current:
        return "the version of this run"
    if (use := next((use for use in uses if _concerns(use, item)), None)) is not None:
        return f"used by {use.by}"
    if item.last_used is None:
        return "nobody knows how old it is"
    return "made or used less than a day ago" if now - item.last_used < YOUNG else None


def _concerns(use: Use, item: Prunable) -> bool:
    if use.digest == item.digest:
        return True
    path = item.seen_through.get(use.claim)
    return path is not None and _overlap(use.sub_path, path)


def _overlap(one: str, other: str) -> bool:
    """Whether one of two paths holds the other."""
    parts = zip(PurePosixPath(one).parts, PurePosixPath(other).parts, strict=False)
    return all(left == right for left, right in parts)
