"""PVCs and snapshots in memory, which behave as on a cluster."""

import copy
import itertools
from collections.abc import Mapping
from datetime import UTC, datetime

from kubetrain_components.expose_dataset.claims import CLAIM
from kubetrain_components.manifest import Manifest


class MemoryClaims:
    def __init__(self, phase: str = "Bound") -> None:
        self.phase = phase
        """Phase of PVCs that are created."""
        self.classes: dict[str, Manifest] = {}
        self.default_class = "fast-ssd"
        self.knows_snapshots = True
        self.complaints: list[str] = []
        self.pods: list[Manifest] = []
        self.made: list[tuple[str, str]] = []
        self.deleted: list[tuple[str, str]] = []
        self._objects: dict[tuple[str, str], Manifest] = {}
        self._numbers = itertools.count(1)

    def find(self, kind: str, name: str) -> Manifest | None:
        return copy.deepcopy(self._objects.get((kind, name)))

    def all(self, kind: str) -> list[Manifest]:
        return [copy.deepcopy(each) for (its_kind, _), each in self._objects.items() if its_kind == kind]

    def create(self, manifest: Manifest) -> bool:
        key = (manifest["kind"], manifest["metadata"]["name"])
        if key in self._objects:
            return False
        made = copy.deepcopy(manifest)
        made["metadata"] |= {"uid": f"u-{next(self._numbers)}", "creationTimestamp": datetime.now(UTC).isoformat()}
        if made["kind"] == CLAIM:
            made["spec"].setdefault("storageClassName", self.default_class)
            made["status"] = {"phase": self.phase}
        self.put(made)
        self.made.append(key)
        return True

    def put(self, manifest: Manifest) -> None:
        """Store the object, as another client of the cluster would."""
        manifest["metadata"]["resourceVersion"] = str(next(self._numbers))
        self._objects[manifest["kind"], manifest["metadata"]["name"]] = manifest

    def annotate(self, found: Manifest, values: Mapping[str, str]) -> Manifest | None:
        stored = self.find(found["kind"], found["metadata"]["name"])
        if stored is None or stored["metadata"]["uid"] != found["metadata"]["uid"]:
            return None
        stored["metadata"].setdefault("annotations", {}).update(values)
        self.put(stored)
        return stored

    def delete(self, kind: str, name: str, preconditions: Mapping[str, str]) -> bool:
        stored = self._objects.get((kind, name))
        if stored is None or any(stored["metadata"][key] != preconditions[key] for key in ("uid", "resourceVersion")):
            return False
        del self._objects[kind, name]
        self.deleted.append((kind, name))
        return True

    def vanish(self, kind: str, name: str) -> None:
        del self._objects[kind, name]

    def storage_class(self, name: str) -> Manifest | None:
        return self.classes.get(name)

    def has_snapshots(self) -> bool:
        return self.knows_snapshots

    def warnings(self, name: str) -> list[str]:
        return self.complaints

    def users(self) -> list[Manifest]:
        return self.pods
