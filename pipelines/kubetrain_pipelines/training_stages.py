"""The five stages of a training pipeline, whatever the framework."""

from dataclasses import dataclass
from typing import Any

from kfp import dsl

from kubetrain_components.collect_checkpoint.component import collect_checkpoint
from kubetrain_components.evaluate_model.component import evaluate_model
from kubetrain_components.launch_training.component import launch_training
from kubetrain_components.promote_model.component import promote_model
from kubetrain_components.sync_dataset.component import sync_dataset
from kubetrain_pipelines import images
from kubetrain_pipelines.task_settings import as_launcher, as_step, with_output, with_own_resources, with_s3_secret

Parameter = Any
"""A channel while the pipeline is being built, whatever the type that its function declares."""


@dataclass(frozen=True, kw_only=True)
class Stages:
    sync: dsl.PipelineTask
    launch: dsl.PipelineTask
    """What is set on it describes the pods that train."""
    collect: dsl.PipelineTask
    evaluate: dsl.PipelineTask
    promote: dsl.PipelineTask
    """Its output is the URI of the published version."""


def sync_train_evaluate_promote(
    *,
    framework: str,
    pipeline: str,
    dataset_uri: Parameter,
    dataset_access: Parameter,
    model_uri: Parameter,
    s3_endpoint: Parameter,
    s3_secret: Parameter,
    output_claim: Parameter,
    workers: Parameter,
    min_workers: Parameter | int,
    processes_per_worker: Parameter | int,
    train_config: Parameter,
    min_accuracy: Parameter,
    **for_the_first_step: Parameter,
) -> Stages:
    """The stages as tasks, for a pipeline to set more on them or to go on from them."""
    run = {"pipeline": pipeline, "run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER}
    group = {"workers": workers, "min_workers": min_workers, "processes_per_worker": processes_per_worker}

    synced = sync_dataset(
        framework=framework,
        components_image=images.COMPONENTS,
        trainer_image=images.TRAINERS[framework],
        dataset_uri=dataset_uri,
        dataset_access=dataset_access,
        s3_endpoint=s3_endpoint,
        s3_secret=s3_secret,
        output_claim=output_claim,
        train_config=train_config,
        min_accuracy=min_accuracy,
        model_uri=model_uri,
        **group,
        **for_the_first_step,
        **run,
    )
    with_s3_secret(with_own_resources(as_launcher(as_step(synced, "Sync the dataset"))), s3_secret)
    dataset, reused = synced.outputs["dataset"], synced.outputs["reused"]

    trained = launch_training(
        framework=framework,
        dataset=dataset,
        output_claim=output_claim,
        train_config=train_config,
        placement=synced.outputs["placement"],
        reused=reused,
        **group,
        **run,
    )
    as_launcher(as_step(trained, "Train on several pods"))

    collected = collect_checkpoint(last_checkpoint=trained.outputs["checkpoint"], reused=reused, run_id=run["run_id"])
    with_output(with_own_resources(as_step(collected, "Collect the model")), output_claim)

    evaluated = evaluate_model(
        framework=framework,
        dataset=dataset,
        output_claim=output_claim,
        placement=trained.outputs["placement"],
        reused=reused,
        model=collected.outputs["model"],
        **run,
    )
    with_output(with_own_resources(as_launcher(as_step(evaluated, "Evaluate the model"))), output_claim)

    promoted = promote_model(
        model_uri=model_uri,
        s3_endpoint=s3_endpoint,
        min_accuracy=min_accuracy,
        image=trained.outputs["image"],
        reused=reused,
        run_id=run["run_id"],
    )
    with_output(with_own_resources(as_step(promoted, "Promote the model")), output_claim)
    with_s3_secret(promoted.after(evaluated), s3_secret)
    return Stages(sync=synced, launch=trained, collect=collected, evaluate=evaluated, promote=promoted)
