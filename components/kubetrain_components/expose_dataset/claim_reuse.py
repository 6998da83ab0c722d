"""Whether a claim that is there serves this version.

What is there under the claim's name         | verdict
nothing                                      | create; refuse where it is not ours to make
not made by kubetrain                        | refuse: never touch it
being deleted                                | wait until it is gone, then create
of another version, source, mode or size     | refuse: never delete to make room
unbound, of a class that binds at once       | wait: it is still being filled
unbound, of a class that waits for a pod     | reuse: the first pod binds it
bound                                        | reuse
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from kubetrain_components.expose_dataset.expose import (
    DATASET_LABEL,
    LAST_USED_ANNOTATION,
    Exposure,
    ExposureMode,
    claimed_size,
    is_exposed,
)
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.manifest import Manifest

MAKE_ROOM = "delete it if nobody needs it, or give the dataset another name"


class Verdict(StrEnum):
    CREATE = "create"
    REUSE = "reuse"
    WAIT = "wait"
    REFUSE = "refuse"


@dataclass(frozen=True)
class Decision:
    verdict: Verdict
    sentence: str


def judge_claims(exposure: Exposure, claims: Iterable[Manifest]) -> Decision:
    """What to do about the claim of this exposure, by the table above."""
    found = next((claim for claim in claims if claim["metadata"]["name"] == exposure.claim), None)
    name = f"claim {exposure.claim}"
    if found is None:
        return _decide_absent(exposure)
    if exposure.makes_claim and not is_exposed(found):
        return Decision(Verdict.REFUSE, f"{name} was not made by kubetrain: {MAKE_ROOM}")
    if found["metadata"].get("deletionTimestamp"):
        verdict = Verdict.WAIT if exposure.makes_claim else Verdict.REFUSE
        return Decision(verdict, f"{name} is being deleted: it can be made again once no pod mounts it any more")
    if (problem := next(_mismatches(exposure, found), None)) is not None:
        remedy = MAKE_ROOM if exposure.makes_claim else "name another claim, or choose another exposure"
        return Decision(Verdict.REFUSE, f"{name} {problem}: {remedy}")
    return _decide_by_phase(exposure, (found.get("status") or {}).get("phase", "Unknown"))


def last_used_patch(now: datetime) -> Manifest:
    """For a claim that is reused: pruning by another run leaves it alone for a day, before any job of ours uses it."""
    stamp = now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {"metadata": {"annotations": {LAST_USED_ANNOTATION: stamp}}}


def _decide_absent(exposure: Exposure) -> Decision:
    if exposure.makes_claim:
        origin = exposure.data_source
        return Decision(Verdict.CREATE, f"claim {exposure.claim} is made from {origin['kind']} {origin['name']}")
    setting = "static_claim" if exposure.mode is ExposureMode.STATIC else "the staging claim"
    return Decision(
        Verdict.REFUSE, f"there is no claim {exposure.claim} in this namespace: make it, or correct {setting}"
    )


def _decide_by_phase(exposure: Exposure, phase: str) -> Decision:
    name = f"claim {exposure.claim}"
    if phase == "Bound":
        return Decision(Verdict.REUSE, f"{name} is there, for version {exposure.request.digest}")
    if phase == "Pending" and exposure.makes_claim:
        if exposure.storage.binds_at_once:
            return Decision(Verdict.WAIT, f"{name} is there and still being filled")
        return Decision(Verdict.REUSE, f"{name} is there; the first pod that mounts it has it filled")
    return Decision(
        Verdict.REFUSE,
        f"{name} is {phase}, not Bound: look at `kubectl describe pvc {exposure.claim}`, then have its volume restored "
        "or delete it",
    )


def _mismatches(exposure: Exposure, claim: Manifest) -> Iterator[str]:
    """In what the claim is not the one that this exposure needs."""
    spec = claim["spec"]
    modes = spec["accessModes"]
    if (volume_mode := spec.get("volumeMode") or "Filesystem") != "Filesystem":
        yield f"is a {volume_mode} volume, which holds no files"
    if not exposure.makes_claim:
        wanted = "ReadWriteMany" if exposure.mode is ExposureMode.SHARED else "ReadOnlyMany"
        if wanted not in modes:
            yield f"is {', '.join(modes)}, not {wanted}"
        return
    if modes != ["ReadOnlyMany"]:
        yield f"is {', '.join(modes)}, not ReadOnlyMany alone"
    if (digest := claim["metadata"]["labels"].get(DATASET_LABEL)) != exposure.request.digest:
        yield f"has version {digest}, not {exposure.request.digest}"
    if (origin := _origin(spec.get("dataSource"))) != (wanted := _origin(exposure.data_source)):
        yield f"was made from {origin}, not from {wanted}"
    if whole_amount(size := claimed_size(claim)) < exposure.request.bytes:
        yield f"has {size}, less than the {exposure.request.bytes} bytes of the version"


def _origin(data_source: Mapping[str, str] | None) -> str:
    if not data_source:
        return "nothing"
    group = data_source.get("apiGroup")
    return f"{data_source['kind']}{f'.{group}' if group else ''} {data_source['name']}"
