"""`kubetrain train --cluster --code DIR`: the pods of one job fetch your code from S3, as those of a run do."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.place_code import with_code
from kubetrain_pipelines import bring_code
from kubetrain_pipelines.images import COMPONENTS
from kubetrain_pipelines.pipeline_parameters import PARAMETERS
from kubetrain_trainer.errors import InvalidSetting

STORE = [
    replace(each, default="") if each.is_required else each
    for each in PARAMETERS
    if each.name in ("model_uri", "s3_endpoint", "s3_secret")
]
"""The parameters of the store that brings code, which nothing else of one job uses."""


def fetching_code(training: TrainingJob, settings: Mapping[str, Any]) -> TrainingJob:
    """Return the training, whose pods fetch the archive that its configuration names, if any.

    Raises:
        InvalidSetting: if they could not.
    """
    store = {each.name: settings.get(each.name, each.default) for each in STORE}
    if not training.config.code:
        _check_unused(settings)
        return training
    bring_code.check_store(store["model_uri"])
    run = RunParameters(
        dataset_uri="none",  # the job mounts its dataset
        framework=training.framework,
        pipeline=training.pipeline,
        run_id=training.run_id,
        train_config=training.config,
        placement=training.placement,
        components_image=COMPONENTS,
        **store,
    )
    return replace(training, placement=with_code(run).placement)


def _check_unused(settings: Mapping[str, Any]) -> None:
    for name in (each.name for each in STORE if each.name in settings):
        raise InvalidSetting(f"{name} has no effect on one job, except for its code: add --code, or leave it out")
