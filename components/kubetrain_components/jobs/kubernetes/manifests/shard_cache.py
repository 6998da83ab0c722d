"""The parts of a pod that fetch tar shards from the store for its main container, which has no rights to the store."""

from kubetrain_components.jobs.kubernetes.manifests.code_container import code_volumes
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest

CACHE_MOUNT = {"name": "kubetrain-shard-cache", "mountPath": "/shard-cache"}


def cache_sidecars(placement: Placement) -> list[Manifest]:
    """Return the sidecar: an init container that restarts runs until the others have ended."""
    container = placement.shard_cache.get("container")
    return [{**container, "restartPolicy": "Always"}] if container else []


def cache_volumes(placement: Placement) -> list[Manifest]:
    """Return the folder of the cache, and what the sidecar mounts besides."""
    names = {volume["name"] for volume in [*placement.volumes, *code_volumes(placement)]}
    return [volume for volume in placement.shard_cache.get("volumes", []) if volume["name"] not in names]


def cache_mounts(placement: Placement) -> list[Manifest]:
    return [{**CACHE_MOUNT, "readOnly": True}] if placement.shard_cache else []
