"""Dataset to published model with TensorFlow MultiWorkerMirroredStrategy."""

from kfp import dsl

from kubetrain_pipelines.definitions.pipeline_parameters import described, with_parameters
from kubetrain_pipelines.definitions.training_stages import Channel, sync_train_evaluate_promote

NAME = "train-tensorflow"


@dsl.pipeline(
    name=NAME, description=described("S3 dataset to a checked, published model with TensorFlow on several pods.")
)
@with_parameters(NAME)
def train_tensorflow(**parameters: Channel) -> str:
    """
    Returns:
        URI of the published version.
    """
    return sync_train_evaluate_promote(framework="tensorflow", pipeline=NAME, **parameters).promote.outputs["uri"]
