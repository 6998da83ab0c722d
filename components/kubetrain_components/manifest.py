"""A Kubernetes object as parsed JSON."""

from typing import Any

Manifest = dict[str, Any]
