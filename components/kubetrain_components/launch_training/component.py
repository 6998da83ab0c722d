"""The KFP component launch_training."""

from typing import NamedTuple

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(
    base_image=IMAGE_NAME,
    install_kfp_package=False,
    # What you set on this task in a pipeline applies to the training pods, because this step only follows them.
    task_config_passthroughs=[
        dsl.TaskConfigField.RESOURCES,
        dsl.TaskConfigField.ENV,
        dsl.TaskConfigField.KUBERNETES_AFFINITY,
        dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
        dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
        dsl.TaskConfigField.KUBERNETES_VOLUMES,
    ],
)
def launch_training(
    framework: str,
    dataset: dict,
    run: dict,
    reused: dict,
    pipeline: str,
    run_id: str,
    task_config: dsl.TaskConfig,
    training: dsl.Output[dsl.Markdown],
) -> NamedTuple("Training", checkpoint=str, step=int, image=str, image_id=str, placement=dict, reused=dict):
    """Train in several pods and follow them until they finish.

    Args:
        framework: pytorch or tensorflow.
        dataset: Dataset version to train on, and how pods mount it.
        run: Settings of the run, by group.
        reused: Published model to reuse instead of training; empty: train.
        pipeline: Name of the pipeline.
        run_id: ID of the run.
        task_config: Settings of this task, which apply to the pods.
        training: Summary of the job, with its duration, its manifest, and commands to inspect it.

    Returns:
        The last checkpoint, its step, the name and ID of its image, the evaluation's placement, and the reused model.
    """
    from dataclasses import asdict, replace
    from pathlib import Path

    from kubetrain_components.jobs.placement import Placement
    from kubetrain_components.launch_training.launch import launch_training, with_launcher
    from kubetrain_components.launch_training.summary import training_summary
    from kubetrain_components.launch_training.training_job import TrainingJob
    from kubetrain_components.run.combined_settings import (
        combine_settings,
        place_evaluation,
        placement_settings,
        without_mlflow,
    )
    from kubetrain_components.run.dataset_place import DatasetPlace
    from kubetrain_components.run.request import parameters_of
    from kubetrain_components.run.site import this_site

    if reused:
        reason = (
            f"nothing to train: {reused['uri']} of run {reused['run_id']} has this dataset, configuration and image"
        )
        print(reason)
        Path(training.path).write_text(reason)
        return "", 0, reused["image"], reused["image_id"], {}, reused
    site, place = this_site(), DatasetPlace(**dataset)
    with (
        site.stage("launch_training", run_id) as stage,
        site.shard_cache(place) as shard_cache,
        site.backend() as backend,
    ):
        asked = parameters_of(run, framework=framework, pipeline=pipeline, run_id=run_id)
        of_run = asked.placement.changed_settings()
        of_task = without_mlflow(placement_settings(asdict(task_config)), of_run)
        placed = combine_settings(Placement, {"the run": of_run, "the launch task": of_task})
        evaluation = place_evaluation(placed, asked.evaluation_placement)
        job = TrainingJob.of(
            replace(asked, placement=placed),
            data_dir=site.data_dir(place),
            output_dir=site.output_dir(run_id),
            dataset_digest=place.digest,
            dataset_files=place.files,
            shard_cache=shard_cache,
            mounts=site.mounts(place, asked.storage.mounted_output),
        )
        job = with_launcher(job, backend)
        stage.result = launch_training(job, backend, stage.on_line)
        if not job.is_here:  # the summary's kubectl commands do not apply to a local job
            text = training_summary(job, stage.result, stage.seconds(), stage.progress)
            Path(training.path).write_text(text)
    checkpoint, step, image_id = (stage.result[name] for name in ("checkpoint", "step", "image_id"))
    return checkpoint, step, placed.image, image_id, evaluation.changed_settings(), {}
