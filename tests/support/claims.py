"""PVCs in memory, which behave as on a cluster."""

import copy
import itertools
from collections.abc import Mapping
from datetime import UTC, datetime

from kubetrain_components.manifest import Manifest


class MemoryClaims:
    def __init__(self, phase: str = "Bound") -> None:
        self.phase = phase
        """Phase of PVCs that are created."""
        self.classes: dict[str, Manifest] = {}
        self.default_class = "fast-ssd"
        self.complaints: list[str] = []
        self.pods: list[Manifest] = []
        self.made: list[str] = []
        self.deleted: list[str] = []
        self._objects: dict[str, Manifest] = {}
        self._numbers = itertools.count(1)

    def find(self, name: str) -> Manifest | None:
        return copy.deepcopy(self._objects.get(name))

    def all(self) -> list[Manifest]:
        return copy.deepcopy(list(self._objects.values()))

    def create(self, manifest: Manifest) -> bool:
        name = manifest["metadata"]["name"]
        if name in self._objects:
            return False
        made = copy.deepcopy(manifest)
        made["metadata"] |= {"uid": f"u-{next(self._numbers)}", "creationTimestamp": datetime.now(UTC).isoformat()}
        made["spec"].setdefault("storageClassName", self.default_class)
        made["status"] = {"phase": self.phase}
        self.put(made)
        self.made.append(name)
        return True

    def put(self, manifest: Manifest) -> None:
        """Store the PVC, as another client of the cluster would."""
        manifest["metadata"]["resourceVersion"] = str(next(self._numbers))
        self._objects[manifest["metadata"]["name"]] = manifest

    def annotate(self, found: Manifest, values: Mapping[str, str]) -> Manifest | None:
        stored = self.find(found["metadata"]["name"])
        if stored is None or stored["metadata"]["uid"] != found["metadata"]["uid"]:
            return None
        stored["metadata"].setdefault("annotations", {}).update(values)
        self.put(stored)
        return stored

    def delete(self, name: str, preconditions: Mapping[str, str]) -> bool:
        stored = self._objects.get(name)
        if stored is None or any(stored["metadata"][key] != preconditions[key] for key in ("uid", "resourceVersion")):
            return False
        del self._objects[name]
        self.deleted.append(name)
        return True

    def vanish(self, name: str) -> None:
        del self._objects[name]

    def storage_class(self, name: str) -> Manifest | None:
        return self.classes.get(name)

    def warnings(self, name: str) -> list[str]:
        return self.complaints

    def users(self) -> list[Manifest]:
        return self.pods
