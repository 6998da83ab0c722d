"""The volumes of a pod: PVCs, shared memory, and the folders of your own code and of what runs it."""

from collections.abc import Mapping, Sequence

from kubetrain_components.jobs.job import ClaimMount, Job
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.processes.code_folder import SAFE_PATH, VARIABLE

SHARED_MEMORY = "shared-memory"

CODE_MOUNT = {"name": "kubetrain-code", "mountPath": "/code"}
TRAINER_MOUNT = {"name": "kubetrain-trainer", "mountPath": "/kubetrain"}
"""In a pod whose image need not have kubetrain_trainer."""
ANY_IMAGE = {"HOME": "/tmp", "USER": "kubetrain"}  # noqa: S108 - the pod's own
"""An image that was not made for the pod's user has no home for it, and no name, which PyTorch looks up."""
PYTHON = ("python", "-m")


def brings_trainer(placement: Placement) -> bool:
    return _has(placement, TRAINER_MOUNT)


def with_brought_trainer(command: Sequence[str]) -> tuple[str, ...]:
    """Return the command of one of kubetrain's programs, which its volume has instead of the image."""
    if tuple(command[:2]) != PYTHON:
        return tuple(command)
    return ("python", f"{TRAINER_MOUNT['mountPath']}/kubetrain_trainer", *command[2:])


def _has(placement: Placement, mount: Mapping[str, str]) -> bool:
    return any(mounted["name"] == mount["name"] for mounted in placement.main.get("volumeMounts") or [])


def code_environment(placement: Placement, env: Mapping[str, str]) -> list[Manifest]:
    """Return the variables. A command of your own imports from the folder first; kubetrain's programs enter it."""
    if not _has(placement, CODE_MOUNT):
        return []
    folder = CODE_MOUNT["mountPath"]
    path = [] if "PYTHONPATH" in placement.env or SAFE_PATH in env else [{"name": "PYTHONPATH", "value": folder}]
    return [*path, {"name": VARIABLE, "value": folder}]


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
