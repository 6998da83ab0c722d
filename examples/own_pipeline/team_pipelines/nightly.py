"""The nightly pipeline: the team's own model on pods with eight GPUs, and the team's own step after publishing."""

from kfp import dsl, kubernetes

from kubetrain_pipelines.definitions.task_settings import as_step
from kubetrain_pipelines.definitions.training_stages import sync_train_evaluate_promote
from team_pipelines.model_card import write_model_card

NAME = "nightly"


@dsl.pipeline(name=NAME, description="The team's text model, trained every night.")
def nightly(
    data_uri: str = "s3://team/text",
    model_uri: str = "s3://team/models/text",
    train_epochs: int = 3,
    pods_processes: int = 8,
) -> str:
    """
    Args:
        data_uri: Dataset of text files.
        model_uri: Where to publish the models.
        train_epochs: Passes over the dataset.
        pods_processes: Processes in each pod; 1 on a machine without GPUs.

    Returns:
        URI of the published version.
    """
    stages = sync_train_evaluate_promote(
        framework="pytorch",
        pipeline=NAME,
        data_uri=data_uri,
        model_uri=model_uri,
        model_name="team_models.text:build",
        model_gate="accuracy>=0.8",
        train_epochs=train_epochs,
        train_batch_size=64,
        pods_processes=pods_processes,
        pods_memory="200Gi",
        pods_shm_size="64Gi",
        pods_more={
            "network": "infiniband",
            "rdma": {"rdma/rdma_shared_device_a": 1},
            "pod": {"spec": {"imagePullSecrets": [{"name": "team-registry"}]}},
        },
    )
    # KFP settings of the launch task apply to the training pods.
    stages.launch.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(8).set_cpu_request("64")
    kubernetes.add_toleration(stages.launch, key="nvidia.com/gpu", operator="Exists", effect="NoSchedule")

    card = write_model_card(model=stages.collect.outputs["model"], uri=stages.promote.outputs["uri"])
    as_step(card, "Write the model card")
    return stages.promote.outputs["uri"]
