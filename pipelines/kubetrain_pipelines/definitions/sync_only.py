"""Refresh a dataset on the staging volume without training."""

from kfp import dsl

from kubetrain_components.run.stages import SYNC
from kubetrain_components.sync_dataset.component import sync_dataset
from kubetrain_pipelines.definitions import images
from kubetrain_pipelines.definitions.pipeline_parameters import with_parameters
from kubetrain_pipelines.definitions.task_settings import as_launcher, as_step, with_own_resources
from kubetrain_pipelines.definitions.training_stages import Channel

NAME = "sync-only"


@dsl.pipeline(name=NAME, description="S3 prefix to a dataset version on the staging volume.")
@with_parameters(NAME)
def sync_only(**parameters: Channel) -> dict:
    """
    Returns:
        Where pods find the dataset version.
    """
    synced = sync_dataset(
        components_image=images.COMPONENTS, pipeline=NAME, run_id=dsl.PIPELINE_JOB_ID_PLACEHOLDER, **parameters
    )
    return with_own_resources(as_launcher(as_step(synced, SYNC.title))).outputs["dataset_place"]
