"""A Kubernetes object as parsed JSON."""

from typing import Any

Manifest = dict[str, Any]
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
"""The annotation in which `kubectl apply` repeats the object, as a text."""
