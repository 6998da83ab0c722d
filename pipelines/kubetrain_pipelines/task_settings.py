"""What every task of our pipelines has in common."""

from kfp import dsl

from kubetrain_pipelines import images


def as_step(task: dsl.PipelineTask, reads_as: str) -> dsl.PipelineTask:
    """Run the task in the components' image, never from KFP's cache, under a name that reads as a sentence.

    The cache's key knows neither what lies in S3 nor what lies on a volume: a hit would skip work that is due.
    """
    task.set_container_image(images.COMPONENTS)
    task.set_caching_options(enable_caching=False)
    task.set_display_name(reads_as)
    return task
