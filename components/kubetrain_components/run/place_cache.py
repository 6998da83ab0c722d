"""Let pods that train and evaluate fetch tar shards into a cache."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.kubernetes.manifests.shard_cache import CACHE_MOUNT
from kubetrain_components.manifest import without_empty
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import transfer_container
from kubetrain_components.run.transfer_placement import transfer_placement

PROGRAM = "kubetrain_components.serve_shards.serve"
BESIDE_BYTES = 1 << 30
"""Space that is not for shards: a node evicts a pod at the limit, even if only its measurement is inexact."""


def stored_shards(parameters: RunParameters) -> dict[str, Any]:
    """Return where a cache finds the shards, and its size; empty if pods read them from a volume."""
    if not parameters.train_config.uses_cache:
        return {}
    store = {"uri": parameters.dataset_uri, "endpoint": parameters.s3_endpoint, "access": parameters.dataset_access}
    return {**store, "cache_bytes": parameters.train_config.cache_bytes}


def cache_in_pods(dataset: DatasetPlace) -> Path | None:
    """Return the path of the cache in pods; None: they read the shards from a volume."""
    return Path(CACHE_MOUNT["mountPath"]) if dataset.shards else None


def with_cache(parameters: RunParameters) -> RunParameters:
    """Return the parameters, whose pods have a cache of shards if train_config says so."""
    config = parameters.train_config
    if not config.uses_cache:
        return parameters
    arguments = ("--access", parameters.dataset_access, "--cache-bytes", str(config.cache_bytes))
    made = transfer_container(parameters, parameters.dataset_uri, CACHE_MOUNT, PROGRAM, *arguments)
    disk = str(config.cache_bytes + BESIDE_BYTES)
    folder = {"name": CACHE_MOUNT["name"], "emptyDir": {"sizeLimit": disk}}
    transfer = transfer_placement(parameters)
    # Requests and limits are equal, so that pods of the class Guaranteed stay in it.
    limits = without_empty({"cpu": transfer.cpu, "memory": transfer.memory})
    resources = {"requests": {**limits, "ephemeral-storage": disk}, "limits": limits}
    cache = {"container": {**made["container"], "resources": resources}, "volumes": [folder, *made["volumes"]]}
    return replace(parameters, placement=replace(parameters.placement, shard_cache=cache))
