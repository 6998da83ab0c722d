"""The KFP component sync_dataset."""

from typing import NamedTuple

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def sync_dataset(
    dataset_uri: str,
    s3_endpoint: str,
    s3_secret: str,
    pipeline: str,
    run_id: str,
    components_image: str,
    staging_claim: str,
    staging_size: str,
    exposure: str,
    storage_class: str,
    storage: dict,
    placement: dict,
    dataset: dsl.Output[dsl.Markdown],
    dataset_access: str = "credentials",
    framework: str = "",
    trainer_image: str = "",
    train_config: dict = {},  # noqa: B006 - KFP reads the default, nothing changes it
    output_claim: str = "",
    workers: int = 1,
    min_workers: int = 0,
    max_workers: int = 0,
    processes_per_worker: int = 0,
    launcher: str = "auto",
    cpu: str = "1",
    memory: str = "4Gi",
    gpus: int = 0,
    shm_size: str = "1Gi",
    min_accuracy: float = 0.0,
    gate: str = "",
    model_uri: str = "",
    skip_unchanged: bool = False,
    evaluation_placement: dict = {},  # noqa: B006
) -> NamedTuple("Synced", dataset_place=dict, placement=dict, reused=dict, latest=dict, train_config=dict):
    """Check every parameter of the run, and sync the dataset to a version on the staging PVC.

    Args:
        dataset_uri: Dataset: s3://BUCKET/PREFIX.
        s3_endpoint: URL of the S3 server; empty: AWS.
        s3_secret: Secret with the S3 credentials; may be missing.
        pipeline: Name of the pipeline.
        run_id: ID of the run.
        components_image: Image of the transfer pod.
        staging_claim: PVC for dataset versions.
        staging_size: Size of the staging PVC if it is created.
        exposure: How training pods get read-only access to a version.
        storage_class: Storage class of both PVCs if they are created.
        storage: Other storage settings.
        placement: Other placement settings.
        dataset: Summary of the dataset version: its source, size and verification, and how pods read it.
        dataset_access: How to access the dataset in S3: credentials, anonymous or requester-pays.
        framework: pytorch or tensorflow; empty: the run does not train.
        trainer_image: Image of the training pods, unless the placement sets another.
        train_config: Training settings.
        output_claim: PVC for checkpoints and models.
        workers: Number of training pods.
        min_workers: Minimum number of pods that training continues with after losing others; 0: all pods restart.
        max_workers: Maximum number of pods that an elastic training grows to; 0: as many as workers.
        processes_per_worker: PyTorch processes in each pod; 0: one for each GPU.
        launcher: What runs the training pods: training-operator, trainer or job; auto: the first that the cluster has.
        cpu: CPU request of a pod.
        memory: Memory request of a pod.
        gpus: GPUs of a pod.
        shm_size: Size of /dev/shm.
        min_accuracy: Minimum accuracy on the test split; 0: no minimum.
        gate: Conditions that a model must meet to be published.
        model_uri: Destination of published models: s3://BUCKET/PREFIX.
        skip_unchanged: Reuse the latest model if training would only repeat it.
        evaluation_placement: Placement settings of the evaluation that differ from the training's.

    Returns:
        The place of the dataset version, the placement of the training pods, the model to reuse, if any, where the
        evaluation finds the latest model, if the gate compares with it, and the training settings, with the place of
        the initial weights.
    """
    from functools import partial
    from pathlib import Path

    from kubetrain_components.expose_dataset.storage import Storage
    from kubetrain_components.run.admission import admit_run, check_model_store
    from kubetrain_components.run.dataset_place import DatasetPlace
    from kubetrain_components.run.reuse import model_to_reuse
    from kubetrain_components.run.site import this_site
    from kubetrain_components.run.transfer_container import latest_source, stored_shards
    from kubetrain_components.sync_dataset.summary import dataset_summary
    from kubetrain_components.sync_dataset.weights import with_brought_weights

    site = this_site()
    with site.stage("sync_dataset", run_id) as stage, site.backend() as backend:
        parameters = admit_run(
            dataset_uri=dataset_uri,
            dataset_access=dataset_access,
            s3_endpoint=s3_endpoint,
            s3_secret=s3_secret,
            pipeline=pipeline,
            run_id=run_id,
            components_image=components_image,
            staging_claim=staging_claim,
            staging_size=staging_size,
            output_claim=output_claim or Storage.output_claim,
            exposure=exposure,
            storage_class=storage_class,
            storage=storage,
            framework=framework,
            trainer_image=trainer_image,
            train_config=train_config,
            workers=workers,
            min_workers=min_workers,
            max_workers=max_workers,
            processes_per_worker=processes_per_worker,
            launcher=launcher,
            cpu=cpu,
            memory=memory,
            gpus=gpus,
            shm_size=shm_size,
            placement=placement,
            min_accuracy=min_accuracy,
            gate=gate,
            model_uri=model_uri,
            skip_unchanged=skip_unchanged,
            evaluation_placement=evaluation_placement,
        )
        check_model_store(parameters)
        stage.result = site.sync(parameters, backend, stage.on_line)
        parameters = with_brought_weights(parameters, stage.result.get("weights", ""))
        image_id = partial(site.image_id, parameters, backend, stage.on_line)
        reused = model_to_reuse(parameters, stage.result["digest"], image_id)
    place = DatasetPlace.of_report(stage.result, stored_shards(parameters))
    Path(dataset.path).write_text(dataset_summary(stage.result, place, site.data_dir(place)))
    settings, config = parameters.placement.changed_settings(), parameters.train_config.changed_settings()
    return place.to_dict(), settings, reused, latest_source(parameters), config
