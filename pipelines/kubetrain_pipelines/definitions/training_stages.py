"""The stages of a training pipeline, which are the same for every framework."""

from dataclasses import dataclass
from typing import Any

from kfp import dsl
from kfp.dsl import pipeline_context

from kubetrain_components.collect_checkpoint.component import collect_checkpoint
from kubetrain_components.evaluate_model.component import evaluate_model
from kubetrain_components.launch_training.component import launch_training
from kubetrain_components.promote_model.component import promote_model
from kubetrain_components.run.stages import COLLECT, EVALUATE, PROMOTE, SYNC, TRAIN
from kubetrain_components.sync_dataset.component import sync_dataset
from kubetrain_pipelines.definitions import images
from kubetrain_pipelines.definitions.pipeline_parameters import parameters_of, signature_of
from kubetrain_pipelines.definitions.task_settings import (
    as_launcher,
    as_step,
    with_output,
    with_own_resources,
    with_s3_secret,
)
from kubetrain_trainer.errors import InvalidSetting

Channel = Any
"""A parameter of a pipeline during its compilation (a KFP PipelineChannel), or a constant."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    sync: dsl.PipelineTask
    launch: dsl.PipelineTask
    """KFP settings of this task (resources, tolerations, ...) apply to the training pods."""
    collect: dsl.PipelineTask
    evaluate: dsl.PipelineTask
    promote: dsl.PipelineTask
    """Has the output uri, which is that of the published version."""


def sync_train_evaluate_promote(*, framework: str, pipeline: str, **parameters: Channel) -> Stages:
    """Add the stages to the pipeline that is being compiled.

    Args:
        framework: pytorch or tensorflow.
        pipeline: Name of the pipeline.
        parameters: Fields of the form, such as train_epochs (see docs/settings.md), with defaults for those left out.

    Returns:
        The tasks, which the pipeline may configure further or build on.

    Raises:
        InvalidSetting: if the pipeline has these stages already.
    """
    _check_is_first()
    run = {"pipeline": pipeline, "run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER}
    bound = signature_of(parameters_of(f"train-{framework}")).bind(**parameters)
    bound.apply_defaults()
    form = bound.arguments
    secret, output_claim = form["data_secret"], form["storage_output_claim"]

    synced = sync_dataset(
        framework=framework,
        components_image=images.COMPONENTS,
        trainer_image=images.TRAINERS[framework],
        **form,
        **run,
    )
    with_s3_secret(with_own_resources(as_launcher(as_step(synced, SYNC.title))), secret)
    dataset, settings = synced.outputs["dataset_place"], synced.outputs["run"]

    trained = launch_training(
        framework=framework,
        dataset=dataset,
        run=settings,
        reused=synced.outputs["reused"],
        **run,
    )
    as_launcher(as_step(trained, TRAIN.title))
    reused = trained.outputs["reused"]

    collected = collect_checkpoint(
        last_checkpoint=trained.outputs["checkpoint"], reused=reused, run=settings, run_id=run["run_id"]
    )
    with_output(with_own_resources(as_step(collected, COLLECT.title)), output_claim, secret)

    evaluated = evaluate_model(
        framework=framework,
        dataset=dataset,
        placement=trained.outputs["placement"],
        latest=synced.outputs["latest"],
        reused=reused,
        model=collected.outputs["model"],
        run=settings,
        **run,
    )
    with_output(with_own_resources(as_launcher(as_step(evaluated, EVALUATE.title))), output_claim, secret)

    promoted = promote_model(
        run=settings,
        image=trained.outputs["image"],
        image_id=trained.outputs["image_id"],
        reused=reused,
        conditions_met=evaluated.outputs["conditions_met"],
        refusal=evaluated.outputs["refusal"],
        run_id=run["run_id"],
    )
    with_output(with_own_resources(as_step(promoted, PROMOTE.title)), output_claim, secret)
    return Stages(sync=synced, launch=trained, collect=collected, evaluate=evaluated, promote=promoted)


def _check_is_first() -> None:
    """Check it because all jobs and the output of a run have its ID."""
    compiled = pipeline_context.Pipeline.get_default_pipeline()
    if compiled and TRAIN.task in compiled.tasks:
        raise InvalidSetting(
            "sync_train_evaluate_promote() can be called once in a pipeline, because a run has one training: submit a "
            "run for each, such as with another seed"
        )
