"""sync_dataset as a KFP component."""

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
    metrics: dsl.Output[dsl.Metrics],
    dataset_access: str = "credentials",
    framework: str = "",
    trainer_image: str = "",
    train_config: dict = {},  # noqa: B006 - KFP reads the default, nothing changes it
    output_claim: str = "",
    workers: int = 1,
    min_workers: int = 0,
    processes_per_worker: int = 1,
    cpu: str = "1",
    memory: str = "4Gi",
    gpus: int = 0,
    shm_size: str = "1Gi",
    min_accuracy: float = 0.0,
    model_uri: str = "",
    skip_unchanged: bool = False,
) -> NamedTuple("Synced", dataset=dict, placement=dict, reused=dict):
    """Bring an S3 prefix to the staging volume as a dataset version, after checking every parameter of the run.

    Args:
        dataset_uri: Where the dataset is: s3://BUCKET/PREFIX.
        s3_endpoint: S3 server; empty for AWS.
        s3_secret: Secret with the S3 credentials; may be missing.
        pipeline: Name of the pipeline.
        run_id: Id of the run.
        components_image: What the transfer runs in.
        staging_claim: The claim that dataset versions are brought to.
        staging_size: Its size where it is made.
        exposure: How pods see the version read-only.
        storage_class: Of claims that are made.
        storage: Further settings of the storage.
        placement: Further settings of where and how pods run.
        metrics: What was found and done.
        dataset_access: How S3 is asked for the dataset: credentials, anonymous or requester-pays.
        framework: pytorch or tensorflow; empty where nothing is trained.
        trainer_image: What the training runs in, unless the placement names another.
        train_config: Settings of the training.
        output_claim: The claim that the training writes to.
        workers: Pods of the training.
        min_workers: Pods that go on when others are lost.
        processes_per_worker: Training processes in each pod.
        cpu: Processors of each pod.
        memory: Memory of each pod.
        gpus: GPUs of each pod.
        shm_size: Size of /dev/shm in each pod.
        min_accuracy: What the model must reach on the test split.
        model_uri: Where the model goes.
        skip_unchanged: Whether to reuse the latest model where a training would only repeat it.

    Returns:
        Where pods find the dataset version, where and how they are to run, and the model that makes them needless.
    """
    from kubetrain_components.expose_dataset.storage import Storage
    from kubetrain_components.run.admission import admit_run, model_to_reuse
    from kubetrain_components.run.dataset_place import DatasetPlace
    from kubetrain_components.run.metrics_artifact import log_numbers
    from kubetrain_components.run.site import this_site

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
            processes_per_worker=processes_per_worker,
            cpu=cpu,
            memory=memory,
            gpus=gpus,
            shm_size=shm_size,
            placement=placement,
            min_accuracy=min_accuracy,
            model_uri=model_uri,
            skip_unchanged=skip_unchanged,
        )
        stage.result = site.sync(parameters, backend, stage.on_line)
        reused = model_to_reuse(parameters, stage.result["digest"])
    log_numbers(metrics, stage.result)
    return DatasetPlace.of(stage.result).to_dict(), parameters.placement.changed_settings(), reused
