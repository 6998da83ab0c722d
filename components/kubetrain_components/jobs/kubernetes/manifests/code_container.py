"""The parts of a pod that bring your own code to its main container."""

from collections.abc import Mapping

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.code_folder import SAFE_PATH, VARIABLE

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
