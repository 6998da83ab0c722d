"""The decision that a run makes after its first step: to train, or to go on with the latest model."""

from typing import Any

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.published_model import latest_model, why_to_train
from kubetrain_trainer.config import TrainConfig


def model_to_reuse(parameters: RunParameters, dataset_digest: str, s3_endpoint: str) -> dict[str, Any]:
    """The published model; empty where a training is due, and then it says why."""
    latest = latest_model(open_store(parameters.model_uri, s3_endpoint))
    config = TrainConfig.from_dict(parameters.train_config)
    reason = why_to_train(latest, dataset_digest, config.digest, parameters.placement.image)
    if latest is None or reason:
        print(f"a training is due: {reason}", flush=True)
        return {}
    print(f"nothing to train: {latest.uri} of run {latest.run_id} is what a training would make again", flush=True)
    return latest.to_dict()
