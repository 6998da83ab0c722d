"""Refresh a dataset on the staging volume without training."""

from kfp import dsl

from kubetrain_components.sync_dataset.component import sync_dataset
from kubetrain_pipelines.task_settings import as_step

NAME = "sync-only"


@dsl.pipeline(name=NAME, description="S3 prefix to a dataset version on the staging volume.")
def sync_only(dataset_uri: str, s3_endpoint: str = "", dataset_access: str = "credentials") -> str:
    """
    Args:
        dataset_uri: Where the dataset is: s3://BUCKET/PREFIX.
        s3_endpoint: S3 server; empty for AWS.
        dataset_access: How S3 is asked for the dataset: credentials, anonymous (a public bucket) or requester-pays.

    Returns:
        Digest of the dataset version.
    """
    synced = sync_dataset(
        dataset_uri=dataset_uri,
        s3_endpoint=s3_endpoint,
        dataset_access=dataset_access,
        pipeline=NAME,
        run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER,
    )
    return as_step(synced, "Sync the dataset").outputs["Output"]
