"""Dataset to published model with TensorFlow MultiWorkerMirroredStrategy."""

from kfp import dsl

from kubetrain_pipelines.training_stages import sync_train_evaluate_promote

NAME = "train-tensorflow"


@dsl.pipeline(name=NAME, description="S3 dataset to a checked, published model by TensorFlow on several pods.")
def train_tensorflow(
    dataset_uri: str,
    model_uri: str,
    s3_endpoint: str = "",
    s3_secret: str = "kubetrain-s3",  # noqa: S107 - its name
    dataset_access: str = "credentials",
    staging_claim: str = "kubetrain-staging",
    staging_size: str = "100Gi",
    output_claim: str = "kubetrain-output",
    exposure: str = "auto",
    storage_class: str = "",
    storage: dict = {},  # noqa: B006 - KFP reads the default, nothing changes it
    workers: int = 2,
    cpu: str = "1",
    memory: str = "4Gi",
    gpus: int = 0,
    shm_size: str = "1Gi",
    placement: dict = {},  # noqa: B006
    train_config: dict = {},  # noqa: B006
    min_accuracy: float = 0.0,
    skip_unchanged: bool = False,
) -> str:
    """
    Args:
        dataset_uri: Where the dataset is: s3://BUCKET/PREFIX, holding train/, val/ and test/.
        model_uri: Where models of this kind are kept: s3://BUCKET/PREFIX.
        s3_endpoint: S3 server; empty for AWS.
        s3_secret: Secret with AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY; if it is missing, the pods' account counts.
        dataset_access: How S3 is asked for the dataset: credentials, anonymous (a public bucket) or requester-pays.
        staging_claim: Claim that dataset versions are brought to; made where it is missing.
        staging_size: Its size where it is made: that of the dataset and more.
        output_claim: Claim that the training writes checkpoints and the model to; made where it is missing.
        exposure: How pods see the dataset version read-only: auto, clone, snapshot, shared or static.
        storage_class: Storage class of claims that are made; empty for the cluster's default.
        storage: Further settings of the storage, as JSON.
        workers: Pods that train, the Chief among them; each uses every GPU it has.
        cpu: Processors that each pod asks for.
        memory: Memory of each pod, /dev/shm included.
        gpus: GPUs of each pod.
        shm_size: Size of /dev/shm in each pod, which loading processes and NCCL share data by.
        placement: Further settings of where and how pods run, as JSON.
        train_config: Settings of the training that differ from their defaults, as JSON.
        min_accuracy: What the model must reach on the test split to be published; 0 publishes any.
        skip_unchanged: Reuse the latest model where dataset, configuration and image (by digest) are its own.

    Returns:
        URI of the published version.
    """
    return sync_train_evaluate_promote(
        framework="tensorflow",
        pipeline=NAME,
        dataset_uri=dataset_uri,
        dataset_access=dataset_access,
        model_uri=model_uri,
        s3_endpoint=s3_endpoint,
        s3_secret=s3_secret,
        staging_claim=staging_claim,
        staging_size=staging_size,
        output_claim=output_claim,
        exposure=exposure,
        storage_class=storage_class,
        storage=storage,
        workers=workers,
        min_workers=0,
        processes_per_worker=1,
        cpu=cpu,
        memory=memory,
        gpus=gpus,
        shm_size=shm_size,
        placement=placement,
        train_config=train_config,
        min_accuracy=min_accuracy,
        skip_unchanged=skip_unchanged,
    ).promote.output
