"""The five stages of a training pipeline, whatever the framework."""

from typing import Any

from kfp import dsl

from kubetrain_components.collect_checkpoint.component import collect_checkpoint
from kubetrain_components.evaluate_model.component import evaluate_model
from kubetrain_components.launch_training.component import launch_training
from kubetrain_components.promote_model.component import promote_model
from kubetrain_components.sync_dataset.component import sync_dataset
from kubetrain_pipelines import images
from kubetrain_pipelines.task_settings import as_step

Parameter = Any
"""A channel while the pipeline is being built, whatever the type that its function declares."""


def sync_train_evaluate_promote(
    *,
    framework: str,
    pipeline: str,
    dataset_uri: Parameter,
    dataset_access: Parameter,
    model_uri: Parameter,
    s3_endpoint: Parameter,
    workers: Parameter,
    processes_per_worker: Parameter | int,
    train_config: Parameter,
    min_accuracy: Parameter,
) -> Parameter:
    """The URI of the version that the last stage publishes."""
    run = {"pipeline": pipeline, "run_id": dsl.PIPELINE_JOB_ID_PLACEHOLDER}
    size = {"workers": workers, "processes_per_worker": processes_per_worker}

    synced = sync_dataset(
        framework=framework,
        dataset_uri=dataset_uri,
        dataset_access=dataset_access,
        s3_endpoint=s3_endpoint,
        train_config=train_config,
        min_accuracy=min_accuracy,
        model_uri=model_uri,
        **size,
        **run,
    )
    digest = as_step(synced, "Sync the dataset").outputs["Output"]

    trained = launch_training(framework=framework, dataset_digest=digest, train_config=train_config, **size, **run)
    checkpoint = as_step(trained, "Train on several pods").outputs["checkpoint"]

    collected = collect_checkpoint(last_checkpoint=checkpoint, run_id=run["run_id"])
    model = as_step(collected, "Collect the best checkpoint").outputs["model"]

    evaluated = evaluate_model(framework=framework, dataset_digest=digest, model=model, **run)
    as_step(evaluated, "Evaluate the model")

    promoted = promote_model(
        model_uri=model_uri,
        s3_endpoint=s3_endpoint,
        min_accuracy=min_accuracy,
        image=images.TRAINERS[framework],
        run_id=run["run_id"],
    )
    return as_step(promoted.after(evaluated), "Promote the model").output
