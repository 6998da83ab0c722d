"""Refresh a dataset on the staging volume without training."""

from kfp import dsl

from kubetrain_components.sync_dataset.component import sync_dataset
from kubetrain_pipelines import images
from kubetrain_pipelines.task_settings import as_launcher, as_step, with_own_resources

NAME = "sync-only"


@dsl.pipeline(name=NAME, description="S3 prefix to a dataset version on the staging volume.")
def sync_only(
    dataset_uri: str,
    s3_endpoint: str = "",
    s3_secret: str = "kubetrain-s3",  # noqa: S107 - its name
    dataset_access: str = "credentials",
    staging_claim: str = "kubetrain-staging",
    staging_size: str = "100Gi",
    exposure: str = "auto",
    storage_class: str = "",
    storage: dict = {},  # noqa: B006 - KFP reads the default, nothing changes it
    placement: dict = {},  # noqa: B006
) -> dict:
    """
    Args:
        dataset_uri: Where the dataset is: s3://BUCKET/PREFIX.
        s3_endpoint: S3 server; empty for AWS.
        s3_secret: Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; if it is missing, the pods' account counts.
        dataset_access: How S3 is asked for the dataset: credentials, anonymous (a public bucket) or requester-pays.
        staging_claim: Claim that dataset versions are brought to; made where it is missing.
        staging_size: Its size where it is made: that of the dataset and more.
        exposure: How training pods see the version read-only: auto, clone, snapshot, shared or static.
        storage_class: Storage class of claims that are made; empty for the cluster's default.
        storage: Further settings of the storage, as JSON.
        placement: Settings of the transfer's pod, as JSON.

    Returns:
        Where pods find the dataset version.
    """
    synced = sync_dataset(
        dataset_uri=dataset_uri,
        s3_endpoint=s3_endpoint,
        s3_secret=s3_secret,
        dataset_access=dataset_access,
        components_image=images.COMPONENTS,
        staging_claim=staging_claim,
        staging_size=staging_size,
        exposure=exposure,
        storage_class=storage_class,
        storage=storage,
        placement=placement,
        pipeline=NAME,
        run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    return with_own_resources(as_launcher(as_step(synced, "Sync the dataset"))).outputs["dataset"]
