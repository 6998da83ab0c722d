"""Where and how the pods of a dataset transfer run."""

from typing import Any

from kubetrain_components.jobs.annotations import LABEL_PREFIX
from kubetrain_components.jobs.job_identity import LABEL_LENGTH, slug
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.parameters import RunParameters

STAGING_LABEL = LABEL_PREFIX + "staging"
"""Label of pods that write to a staging PVC: its name."""
TRANSFER = {"cpu": "1", "memory": "1Gi", "shm_size": ""}
"""Resources of the transfer's pod, which do not grow with the dataset."""
EVERY_POD = (
    "image_pull_policy",
    "image_pull_secrets",
    "service_account",
    "user",
    "istio",
    "labels",
    "annotations",
    "tolerations",
)
"""Settings of the training pods that also apply to the transfer's pod: what a namespace may demand of every pod."""


def transfer_placement(parameters: RunParameters) -> Placement:
    """The placement of the transfer's pod, which does not use the nodes of the training pods."""
    shared = {name: getattr(parameters.placement, name) for name in EVERY_POD}
    if parameters.placement.scheduler == "kueue":  # the only gang scheduler that also queues plain jobs
        shared |= {"scheduler": "kueue", "queue": parameters.placement.queue}
    if parameters.storage.staging.access_mode == "ReadWriteOnce":
        staging = {STAGING_LABEL: slug(parameters.storage.staging_claim, LABEL_LENGTH)}
        shared |= {"labels": {**shared["labels"], **staging}, "affinity": _near_pods(staging)}
    own = {"image": parameters.components_image, "env_secrets": [parameters.s3_secret]}
    settings = {**TRANSFER, **shared, **own, **parameters.storage.transfer}
    return Placement.from_dict({"cpu_limit": parameters.placement.limit_of(settings["cpu"]), **settings})


def _near_pods(labels: dict[str, str]) -> dict[str, Any]:
    """Prefer the node of other runs' transfers, because only pods of one node can use the volume at once."""
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    preferred = [{"weight": 100, "podAffinityTerm": term}]
    return {"podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
