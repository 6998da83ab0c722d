"""A Kubernetes object as parsed JSON."""

from collections.abc import Mapping
from typing import Any

Manifest = dict[str, Any]
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which `kubectl apply` repeats the object, as a text."""


def strings(values: Mapping[str, Any]) -> dict[str, str]:
    """Convert numbers and booleans: Kubernetes accepts only strings in these maps."""
    return {name: str(value).lower() if isinstance(value, bool) else str(value) for name, value in values.items()}


def without_managed_fields(manifest: Manifest) -> Manifest:
    """Leave out who set which field, which is often half of an object."""
    metadata = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
    return {**manifest, "metadata": metadata}


def without_empty(values: Manifest) -> Manifest:
    return {name: value for name, value in values.items() if value not in ("", [], {})}
