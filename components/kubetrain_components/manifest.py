"""A Kubernetes object as the API server takes it: JSON, read into a dictionary."""

from typing import Any

Manifest = dict[str, Any]
