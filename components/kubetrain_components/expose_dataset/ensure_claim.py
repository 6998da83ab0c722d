"""The claims of a run, by name: made on demand, used as they are where they are there."""

from collections.abc import Iterator
from dataclasses import dataclass

from kubetrain_components.expose_dataset.claims import CLAIM, Claims
from kubetrain_components.expose_dataset.waiting import Say, Waiting
from kubetrain_components.jobs.job import MANAGED_BY
from kubetrain_components.jobs.quantity import whole_amount
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import InvalidSetting

CREATION_SECONDS = 60.0
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
        whole_amount(self.size)

    def manifest(self) -> Manifest:
        """Nothing owns it: it outlives the run."""
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
    """The claim of this name. Nobody waits for it to be bound: it may be so only once a pod uses it.

    Raises:
        InvalidSetting: where the one that is there cannot serve.
    """
    waiting = Waiting(say, CREATION_SECONDS, "look at `kubectl get events` and the namespace's quota")
    while (found := claims.find(CLAIM, wanted.name)) is None:
        if claims.create(wanted.manifest()):
            say(f"made {wanted.purpose} claim {wanted.name}: {wanted.size}, {wanted.access_mode}")
        elif claims.find(CLAIM, wanted.name) is None:
            waiting.poll(f"{wanted.purpose} claim {wanted.name} cannot be made yet")
    for objection in objections(found):
        raise InvalidSetting(
            f"{wanted.purpose} claim {wanted.name} {objection}: name another as {wanted.purpose}_claim, or delete "
            "this one if nobody needs it, and it is made again"
        )
    return found


def objections(claim: Manifest) -> Iterator[str]:
    """Why nothing could be written there."""
    modes = claim["spec"]["accessModes"]
    if claim["metadata"].get("deletionTimestamp"):
        yield "is being deleted, which ends once no pod mounts it any more"
    if (volume_mode := claim["spec"].get("volumeMode") or "Filesystem") != "Filesystem":
        yield f"is a {volume_mode} volume, which holds no files"
    if (claim.get("status") or {}).get("phase") == "Lost":
        yield "is Lost: its volume is gone"
    if not set(modes) & set(WRITABLE):
        yield f"is {', '.join(modes)}, so nobody may write to it"
