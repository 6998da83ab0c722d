"""Dataset to published model with PyTorch DistributedDataParallel."""

from kfp import dsl

from kubetrain_pipelines.definitions.pipeline_parameters import described, with_parameters
from kubetrain_pipelines.definitions.training_stages import Channel, sync_train_evaluate_promote

NAME = "train-pytorch"


@dsl.pipeline(
    name=NAME, description=described("S3 dataset to a checked, published model with PyTorch DDP on several pods.")
)
@with_parameters(NAME)
def train_pytorch(**parameters: Channel) -> str:
    """
    Returns:
        URI of the published version.
    """
    return sync_train_evaluate_promote(framework="pytorch", pipeline=NAME, **parameters).promote.outputs["uri"]
