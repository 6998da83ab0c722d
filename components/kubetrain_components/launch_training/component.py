"""launch_training as a KFP component."""

from typing import NamedTuple

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def launch_training(
    framework: str,
    dataset_digest: str,
    train_config: dict,
    workers: int,
    processes_per_worker: int,
    pipeline: str,
    run_id: str,
) -> NamedTuple("Training", checkpoint=str, step=int):
    """Train on several pods and follow them to the end.

    Args:
        framework: pytorch or tensorflow.
        dataset_digest: The dataset version to train on.
        train_config: Settings of the training.
        workers: Pods, the Master or Chief among them.
        processes_per_worker: Training processes in each pod.
        pipeline: Name of the pipeline.
        run_id: Id of the run.

    Returns:
        The checkpoint that the training ended with, and its step.
    """
    from kubetrain_components.launch_training.launch import launch_training
    from kubetrain_components.launch_training.training_job import TrainingJob
    from kubetrain_components.site import Site
    from kubetrain_trainer.config import TrainConfig

    site = Site.from_environment()
    training = TrainingJob(
        framework=framework,
        config=TrainConfig.from_dict(train_config),
        pipeline=pipeline,
        run_id=run_id,
        data_dir=site.dataset(dataset_digest),
        output_dir=site.output(run_id).path,
        dataset_digest=dataset_digest,
        workers=workers,
        processes_per_worker=processes_per_worker,
    )
    with site.stage("launch_training", run_id) as stage, site.backend() as backend:
        stage.result = launch_training(training, backend, stage.on_line)
    return stage.result["checkpoint"], stage.result["step"]
