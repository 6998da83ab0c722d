"""The volumes of a pod: PVCs, shared memory, and the folders into which others fetch your own code and tar shards.

The main container has no rights to the store of the shards.
"""

from collections.abc import Mapping

from kubetrain_components.jobs.job import ClaimMount, Job
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.processes.code_folder import SAFE_PATH, VARIABLE

SHARED_MEMORY = "shared-memory"

CACHE_MOUNT = {"name": "kubetrain-shard-cache", "mountPath": "/shard-cache"}

CODE_MOUNT = {"name": "kubetrain-code", "mountPath": "/code"}
CODE_BYTES = "200Mi"


def code_fetchers(placement: Placement) -> list[Manifest]:
    container = placement.code_container.get("container")
    return [container] if container else []


def code_volumes(placement: Placement) -> list[Manifest]:
    """Return the folder of the code, and what the container that fetches it mounts."""
    if not placement.code_container:
        return []
    names = {volume["name"] for volume in placement.volumes}
    others = [volume for volume in placement.code_container.get("volumes", []) if volume["name"] not in names]
    return [{"name": CODE_MOUNT["name"], "emptyDir": {"sizeLimit": CODE_BYTES}}, *others]


def code_mounts(placement: Placement) -> list[Manifest]:
    return [{**CODE_MOUNT, "readOnly": True}] if placement.code_container else []


def code_environment(placement: Placement, env: Mapping[str, str]) -> list[Manifest]:
    """Return the variables. A command of your own imports from the folder first; kubetrain's programs enter it."""
    if not placement.code_container:
        return []
    folder = CODE_MOUNT["mountPath"]
    path = [] if "PYTHONPATH" in placement.env or SAFE_PATH in env else [{"name": "PYTHONPATH", "value": folder}]
    return [*path, {"name": VARIABLE, "value": folder}]


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


def claim_volumes(job: Job) -> list[Manifest]:
    """Make a PVC read-only if all its mounts are: access modes do not prevent writing."""
    volumes: dict[str, Manifest] = {}
    for claim in {mount.claim: None for mount in job.mounts}:
        read_only = all(mount.read_only for mount in job.mounts if mount.claim == claim)
        source = {"claimName": claim, **({"readOnly": True} if read_only else {})}
        volumes[claim] = {"name": _volume_name(job, claim), "persistentVolumeClaim": source}
    if job.placement.shm_size:
        shared = {"medium": "Memory", "sizeLimit": job.placement.shm_size}
        return [*volumes.values(), {"name": SHARED_MEMORY, "emptyDir": shared}]
    return list(volumes.values())


def claim_mounts(job: Job) -> list[Manifest]:
    mounts = [_mount(job, mount) for mount in job.mounts]
    if job.placement.shm_size:
        mounts.append({"name": SHARED_MEMORY, "mountPath": "/dev/shm"})  # noqa: S108 - the pod's own
    return mounts


def _mount(job: Job, mount: ClaimMount) -> Manifest:
    mounted = {"name": _volume_name(job, mount.claim), "mountPath": mount.path}
    if mount.sub_path:
        mounted["subPath"] = mount.sub_path
    return {**mounted, "readOnly": True} if mount.read_only else mounted


def _volume_name(job: Job, claim: str) -> str:
    """Number the PVCs: the name of a PVC may be too long for a volume."""
    return f"claim-{list(dict.fromkeys(mount.claim for mount in job.mounts)).index(claim)}"
