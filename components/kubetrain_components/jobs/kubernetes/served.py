"""Lists of objects of kinds that a cluster may not have, such as those of an operator."""

from typing import Any

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden, UnknownKind
from kubetrain_components.manifest import Manifest, without_managed_fields

Resource = tuple[str, str]
"""API version and plural."""


def is_served(api: KubernetesApi, resource: Resource) -> bool:
    """Return True if the cluster has these objects, which all accounts may ask."""
    version, plural = resource
    try:
        found = api.get(f"/{'api' if version == 'v1' else 'apis'}/{version}") or {}
    except UnknownKind:
        return False
    return any(each["name"] == plural for each in found.get("resources") or [])


def list_if_served(api: KubernetesApi, resource: Resource, **query: Any) -> list[Manifest]:
    """Return the objects; none if the cluster does not have this kind.

    Raises:
        Forbidden: if our account may not list them, although the cluster has the kind.
    """
    try:
        return list((api.list_all(api.path(*resource), without_managed_fields, **query) or {}).get("items") or [])
    except UnknownKind:
        return []
    except Forbidden:  # also the answer for kinds that the cluster does not have
        if is_served(api, resource):
            raise
        return []
