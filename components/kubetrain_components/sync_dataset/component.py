"""sync_dataset as a KFP component."""

from kfp import dsl

from kubetrain_components import IMAGE_NAME


@dsl.component(base_image=IMAGE_NAME, install_kfp_package=False)
def sync_dataset(
    dataset_uri: str,
    s3_endpoint: str,
    pipeline: str,
    run_id: str,
    metrics: dsl.Output[dsl.Metrics],
    dataset_access: str = "credentials",
    framework: str = "",
    train_config: dict = {},  # noqa: B006 - KFP reads the default, nothing changes it
    workers: int = 1,
    processes_per_worker: int = 1,
    min_accuracy: float = 0.0,
    model_uri: str = "",
) -> str:
    """Bring an S3 prefix to the staging volume as a dataset version, after checking every parameter of the run.

    Args:
        dataset_uri: Where the dataset is: s3://BUCKET/PREFIX.
        s3_endpoint: S3 server; empty for AWS.
        pipeline: Name of the pipeline.
        run_id: Id of the run.
        metrics: What was found and done.
        dataset_access: How S3 is asked for the dataset: credentials, anonymous or requester-pays.
        framework: pytorch or tensorflow; empty where nothing is trained.
        train_config: Settings of the training.
        workers: Pods of the training.
        processes_per_worker: Training processes in each pod.
        min_accuracy: What the model must reach on the test split.
        model_uri: Where the model goes.

    Returns:
        Digest of the dataset version.
    """
    from kubetrain_components.run_parameters import RunParameters
    from kubetrain_components.site import Site
    from kubetrain_components.sync_dataset.sync import SyncRequest, sync_dataset

    site = Site.from_environment()
    parameters = RunParameters(
        dataset_uri=dataset_uri,
        dataset_access=dataset_access,
        framework=framework,
        train_config=train_config,
        workers=workers,
        processes_per_worker=processes_per_worker,
        min_accuracy=min_accuracy,
        model_uri=model_uri,
    )
    request = SyncRequest(
        source=dataset_uri, endpoint_url=s3_endpoint, access=dataset_access, pipeline=pipeline, run_id=run_id
    )
    with site.stage("sync_dataset", run_id) as stage, site.backend() as backend:
        stage.result = sync_dataset(parameters, request, site.staging, backend, stage.on_line)
    for name, value in stage.result.items():
        if isinstance(value, int | float) and not isinstance(value, bool):
            metrics.log_metric(name, value)
    return stage.result["digest"]
