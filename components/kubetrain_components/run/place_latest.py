"""Let the evaluation's pod fetch the latest model, if the gate compares with it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubetrain_components import LATEST_PATH
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import transfer_container

MOUNT = {"name": "kubetrain-latest-model", "mountPath": LATEST_PATH}
PROGRAM = "kubetrain_components.fetch_model.fetch"


def latest_source(parameters: RunParameters) -> dict[str, Any]:
    """Return where the latest model is, and the container that fetches it; empty if the gate does not compare."""
    if not parameters.framework or not parameters.parsed_gate.compares:
        return {}
    store = {"uri": parameters.model_uri, "endpoint": parameters.s3_endpoint}
    return {**store, **transfer_container(parameters, parameters.model_uri, MOUNT, PROGRAM)}


def place_latest(evaluation: Placement, latest: Mapping[str, Any]) -> Placement:
    """Return the placement of an evaluation, whose pod fetches the latest model first, from this source if any."""
    if not latest:
        return evaluation
    own = {volume["name"] for volume in evaluation.volumes}
    others = [volume for volume in latest["volumes"] if volume["name"] not in own]
    volumes = [{"name": MOUNT["name"], "emptyDir": {}}, *others]
    return replace(
        evaluation,
        init_containers=[latest["container"], *evaluation.init_containers],
        volumes=[*evaluation.volumes, *volumes],
        volume_mounts=[*evaluation.volume_mounts, {**MOUNT, "readOnly": True}],
    )
