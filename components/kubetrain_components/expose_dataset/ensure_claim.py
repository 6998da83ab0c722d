"""Find the staging or output PVC of a run by name, or create it."""

from collections.abc import Iterator
from dataclasses import dataclass

from kubetrain_components.expose_dataset.claims import CLAIM, Claims, Say, Waiting
from kubetrain_components.expose_dataset.storage_facts import volume_problem
from kubetrain_components.jobs.annotations import MANAGED_BY
from kubetrain_components.jobs.names import check_object_name
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import InvalidSetting

CREATION_TIMEOUT_SECONDS = 60.0
WRITABLE = ("ReadWriteOnce", "ReadWriteMany", "ReadWriteOncePod")


@dataclass(frozen=True, kw_only=True)
class WantedClaim:
    purpose: str
    """staging or output"""
    name: str
    size: str
    access_mode: str
    storage_class: str = ""
    """Empty: the cluster's default."""

    def __post_init__(self) -> None:
        if not whole_amount(self.size):
            raise InvalidSetting(f"storage.{self.purpose}_size is {self.size}: set the size to create the PVC with")
        check_object_name(f"storage.{self.purpose}_claim", self.name)
        if self.storage_class:
            check_object_name("storage.class", self.storage_class)

    def manifest(self) -> Manifest:
        """Return the PVC's manifest, without an owner because the PVC outlives the run."""
        spec: Manifest = {
            "accessModes": [self.access_mode],
            "volumeMode": "Filesystem",
            "resources": {"requests": {"storage": self.size}},
        }
        if self.storage_class:
            spec["storageClassName"] = self.storage_class
        metadata = {"name": self.name, "labels": dict(MANAGED_BY)}
        return {"apiVersion": "v1", "kind": CLAIM, "metadata": metadata, "spec": spec}


def ensure_claim(wanted: WantedClaim, claims: Claims, say: Say) -> Manifest:
    """Return the PVC of this name, created if missing; it may stay unbound until a pod uses it.

    Raises:
        InvalidSetting: if the existing PVC cannot be used.
    """
    waiting = Waiting(say, CREATION_TIMEOUT_SECONDS, "check `kubectl get events` and the namespace's quota")
    while (found := claims.find(wanted.name)) is None:
        if claims.create(wanted.manifest()):
            say(f"created {wanted.purpose} PVC {wanted.name}: {wanted.size}, {wanted.access_mode}")
        elif claims.find(wanted.name) is None:
            waiting.poll(f"{wanted.purpose} PVC {wanted.name} cannot be created yet")
    for objection in objections(found):
        raise InvalidSetting(
            f"{wanted.purpose} PVC {wanted.name} {objection}: set storage.{wanted.purpose}_claim to another PVC, or "
            "delete this one if it is no longer needed, and the run creates it again"
        )
    return found


def reading_problem(name: str, found: Manifest | None) -> str:
    """Return why pods cannot read the PVC of data that is read where it is; empty if they can."""
    problems = objections(found, is_written=False) if found else ["does not exist"]
    return next((f"PVC {name} {problem}" for problem in problems), "")


def objections(claim: Manifest, *, is_written: bool = True) -> Iterator[str]:
    """Yield the reasons why pods cannot use the PVC."""
    modes = claim["spec"]["accessModes"]
    if claim["metadata"].get("deletionTimestamp"):
        yield "is being deleted, which completes once no pod mounts it"
    if problem := volume_problem(claim["spec"].get("volumeMode")):
        yield problem
    if (claim.get("status") or {}).get("phase") == "Lost":
        yield "is Lost: its volume is gone"
    if is_written and not set(modes) & set(WRITABLE):
        yield f"is {', '.join(modes)}, so pods cannot write to it"
