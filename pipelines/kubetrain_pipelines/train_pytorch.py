"""Dataset to published model with PyTorch DistributedDataParallel."""

from kfp import dsl

from kubetrain_pipelines.training_stages import sync_train_evaluate_promote

NAME = "train-pytorch"


@dsl.pipeline(name=NAME, description="S3 dataset to a checked, published model by PyTorch DDP on several pods.")
def train_pytorch(
    dataset_uri: str,
    model_uri: str,
    s3_endpoint: str = "",
    dataset_access: str = "credentials",
    workers: int = 2,
    processes_per_worker: int = 1,
    train_config: dict = {},  # noqa: B006 - KFP reads the default, nothing changes it
    min_accuracy: float = 0.0,
) -> str:
    """
    Args:
        dataset_uri: Where the dataset is: s3://BUCKET/PREFIX, holding train/, val/ and test/.
        model_uri: Where models of this kind are kept: s3://BUCKET/PREFIX.
        s3_endpoint: S3 server; empty for AWS.
        dataset_access: How S3 is asked for the dataset: credentials, anonymous (a public bucket) or requester-pays.
        workers: Pods that train, the Master among them.
        processes_per_worker: Training processes in each pod: one for each GPU.
        train_config: Settings of the training that differ from their defaults, as JSON.
        min_accuracy: What the model must reach on the test split to be published; 0 publishes any.

    Returns:
        URI of the published version.
    """
    return sync_train_evaluate_promote(
        framework="pytorch",
        pipeline=NAME,
        dataset_uri=dataset_uri,
        dataset_access=dataset_access,
        model_uri=model_uri,
        s3_endpoint=s3_endpoint,
        workers=workers,
        processes_per_worker=processes_per_worker,
        train_config=train_config,
        min_accuracy=min_accuracy,
    )
