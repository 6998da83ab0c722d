"""The parts of pods and jobs that say which PVCs and versions they use: a namespace may have 10,000 pods."""

from typing import Any

from kubetrain_components.manifest import Manifest

METADATA = ("name", "labels")
STATUS = ("phase", "conditions")


def evidence_of_use(each: Manifest) -> Manifest:
    """Return what decides about the uses of PVCs by a pod or a job of any kind, about 1 % of the object."""
    metadata, status = each["metadata"], each.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in METADATA if name in metadata},
        "spec": _mounts(each.get("spec") or {}) or {},
        "status": {name: status[name] for name in STATUS if name in status},
    }


def _mounts(node: Any) -> Any:
    """Return only the volumes and mounts of a tree, at their places; None if it has none."""
    if isinstance(node, list):
        return [kept for each in node if (kept := _mounts(each))] or None
    if not isinstance(node, dict):
        return None
    found = {name: _mounts(part) for name, part in node.items() if name not in ("volumes", "volumeMounts")}
    found["volumes"] = [each for each in node.get("volumes") or () if "persistentVolumeClaim" in each]
    found["volumeMounts"] = [
        {name: mount[name] for name in ("name", "subPath") if name in mount} for mount in node.get("volumeMounts") or ()
    ]
    return {name: part for name, part in found.items() if part} or None
