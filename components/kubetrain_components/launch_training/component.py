"""launch_training as a KFP component."""

from typing import NamedTuple

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(
    base_image=IMAGE_NAME,
    install_kfp_package=False,
    # What a pipeline's author sets on this task describes the pods that train: this one only follows them.
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
    output_claim: str,
    train_config: dict,
    workers: int,
    min_workers: int,
    processes_per_worker: int,
    placement: dict,
    reused: dict,
    pipeline: str,
    run_id: str,
    task_config: dsl.TaskConfig,
    summary: dsl.Output[dsl.Markdown],
) -> NamedTuple("Training", checkpoint=str, step=int, image=str, placement=dict):
    """Train on several pods and follow them to the end.

    Args:
        framework: pytorch or tensorflow.
        dataset: Where pods find the dataset version to train on.
        output_claim: The claim that they write to.
        train_config: Settings of the training.
        workers: Pods, the Master or Chief among them.
        min_workers: Pods that go on when others are lost; 0: all start again.
        processes_per_worker: Training processes in each pod.
        placement: Where and how the pods run.
        reused: The published model that makes a training needless; empty where one is due.
        pipeline: Name of the pipeline.
        run_id: Id of the run.
        task_config: What is set on this task, which is for the pods too.
        summary: How the job went, how to look at it, and what it was.

    Returns:
        The checkpoint that the training ended with, its step, what trained, and where and how.
    """
    from dataclasses import asdict
    from pathlib import Path

    from kubetrain_components.jobs.placement import Placement
    from kubetrain_components.launch_training.launch import launch_training
    from kubetrain_components.launch_training.summary import training_summary
    from kubetrain_components.launch_training.task_config import placement_settings
    from kubetrain_components.launch_training.training_job import TrainingJob
    from kubetrain_components.run.combined_settings import combined
    from kubetrain_components.run.dataset_place import DatasetPlace
    from kubetrain_components.run.site import this_site
    from kubetrain_trainer.config import TrainConfig

    if reused:
        words = f"nothing to train: {reused['uri']} of run {reused['run_id']} has this dataset, configuration and image"
        print(words)
        Path(summary.path).write_text(words)
        return "", 0, reused["image"], placement
    site, place = this_site(), DatasetPlace(**dataset)
    with site.stage("launch_training", run_id) as stage, site.backend() as backend:
        of_task = placement_settings(asdict(task_config))
        placed = combined(Placement, {"the run's parameters": placement, "the launch task": of_task})
        training = TrainingJob(
            framework=framework,
            config=TrainConfig.from_dict(train_config),
            pipeline=pipeline,
            run_id=run_id,
            data_dir=site.data_dir(place),
            output_dir=site.output(run_id).path,
            dataset_digest=place.digest,
            workers=workers,
            processes_per_worker=processes_per_worker,
            min_workers=min_workers,
            placement=placed,
            mounts=site.mounts(place, output_claim),
        )
        stage.result = launch_training(training, backend, stage.on_line)
        if training.mounts:  # a job of one machine is nothing that kubectl knows
            words = training_summary(training, stage.result, stage.seconds(), stage.progress)
            Path(summary.path).write_text(words)
    return stage.result["checkpoint"], stage.result["step"], placed.image, placed.changed_settings()
