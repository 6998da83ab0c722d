"""Add to the placement of pods an init container that brings your code to them, read-only."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.object_store.credentials import VARIABLES
from kubetrain_components.run.parameters import RunParameters

FOLDER = "/code"
NAME = "kubetrain-code"
RESOURCES = {"requests": {"cpu": "100m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def with_code(parameters: RunParameters) -> RunParameters:
    """Return the parameters, whose pods fetch the archive that train_config names, if any."""
    if not parameters.train_config.code:
        return parameters
    return replace(parameters, placement=_placement(parameters.placement, _fetcher(parameters)))


def _placement(training: Placement, fetcher: Mapping[str, Any]) -> Placement:
    mount = {"name": NAME, "mountPath": FOLDER, "readOnly": True}
    return replace(
        training,
        init_containers=[fetcher, *training.init_containers],
        volumes=[*training.volumes, {"name": NAME, "emptyDir": {"sizeLimit": "200Mi"}}],
        volume_mounts=[*training.volume_mounts, mount],
        env={"PYTHONPATH": FOLDER, **training.env, "KUBETRAIN_CODE": FOLDER},
    )


def _fetcher(parameters: RunParameters) -> dict[str, Any]:
    source = ["--uri", parameters.model_uri, "--endpoint", parameters.s3_endpoint]
    archive = ["--digest", parameters.train_config.code, "--to", FOLDER]
    return {
        "name": NAME,
        "image": parameters.components_image,
        "command": ["python", "-m", "kubetrain_components.bring_code.fetch", *source, *archive],
        "env": [_from_secret(name, parameters.s3_secret) for name in VARIABLES],
        "volumeMounts": [{"name": NAME, "mountPath": FOLDER}],
        "resources": RESOURCES,
    }


def _from_secret(name: str, secret: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"secretKeyRef": {"name": secret, "key": name, "optional": True}}}
