"""The placement of the pods of a dataset transfer, and containers that fetch from S3 for other pods in the same way."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components import LATEST_PATH
from kubetrain_components.jobs.annotations import LABEL_PREFIX
from kubetrain_components.jobs.job import OWN_PROGRAM, Job, Replica
from kubetrain_components.jobs.job_identity import LABEL_LENGTH, JobIdentity, slug
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template
from kubetrain_components.jobs.kubernetes.manifests.volumes import CACHE_MOUNT, CODE_MOUNT
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.manifest import Manifest, without_empty
from kubetrain_components.run.dataset_place import DatasetPlace
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

CACHE_PROGRAM = "kubetrain_components.serve_shards.serve"
BESIDE_BYTES = 1 << 30
"""Space that is not for shards: a node evicts a pod at the limit, even if only its measurement is inexact."""

LATEST_MOUNT = {"name": "kubetrain-latest-model", "mountPath": LATEST_PATH}
LATEST_PROGRAM = "kubetrain_components.fetch_model.fetch"

CODE_PROGRAM = "kubetrain_components.bring_code.fetch"

RESOURCES = {"cpu": "500m", "memory": "512Mi"}
"""Requests and limits are equal, so that pods of the class Guaranteed stay in it."""


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


def transfer_container(
    parameters: RunParameters, uri: str, mount: Manifest, program: str, *arguments: str
) -> dict[str, Any]:
    """Return an init container that runs this program, and the volumes that it mounts.

    Args:
        uri: The store that the program reads.
        mount: Where the program puts what it fetches; its name is the container's, too.
    """
    source = ("--uri", uri, "--endpoint", parameters.s3_endpoint)
    command = ("python", "-m", program, *source, *arguments, "--to", mount["mountPath"])
    container = _container(parameters, command)
    resources = {"requests": RESOURCES, "limits": RESOURCES}
    own = {"name": mount["name"], "volumeMounts": [*container.get("volumeMounts", []), mount], "resources": resources}
    return {"container": {**container, **own}, "volumes": parameters.storage.transfer.get("volumes", [])}


def _container(parameters: RunParameters, command: tuple[str, ...]) -> Manifest:
    replica = Replica(role="Fetch", count=1, command=command, env=OWN_PROGRAM)
    identity = JobIdentity(pipeline=parameters.pipeline, stage="fetch", run_id=parameters.run_id)
    placement = transfer_placement(parameters)
    job = Job(identity=identity, kind=JobKind.BATCH_JOB, replicas=(replica,), placement=placement)
    container: Manifest = pod_template(job, replica)["spec"]["containers"][0]
    return container


def with_code(parameters: RunParameters) -> RunParameters:
    """Return the parameters, whose training pods fetch the archive that train_config names, if any."""
    if not (digest := parameters.train_config.code):
        return parameters
    code = transfer_container(parameters, parameters.model_uri, CODE_MOUNT, CODE_PROGRAM, "--digest", digest)
    return replace(parameters, placement=replace(parameters.placement, code_container=code))


def latest_source(parameters: RunParameters) -> dict[str, Any]:
    """Return where the latest model is, and the container that fetches it; empty if the gate does not compare."""
    if not parameters.framework or not parameters.parsed_gate.compares:
        return {}
    store = {"uri": parameters.model_uri, "endpoint": parameters.s3_endpoint}
    return {**store, **transfer_container(parameters, parameters.model_uri, LATEST_MOUNT, LATEST_PROGRAM)}


def place_latest(evaluation: Placement, latest: Mapping[str, Any]) -> Placement:
    """Return the placement of an evaluation, whose pod fetches the latest model first, from this source if any."""
    if not latest:
        return evaluation
    own = {volume["name"] for volume in evaluation.volumes}
    others = [volume for volume in latest["volumes"] if volume["name"] not in own]
    volumes = [{"name": LATEST_MOUNT["name"], "emptyDir": {}}, *others]
    return replace(
        evaluation,
        init_containers=[latest["container"], *evaluation.init_containers],
        volumes=[*evaluation.volumes, *volumes],
        volume_mounts=[*evaluation.volume_mounts, {**LATEST_MOUNT, "readOnly": True}],
    )


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
    made = transfer_container(parameters, parameters.dataset_uri, CACHE_MOUNT, CACHE_PROGRAM, *arguments)
    disk = str(config.cache_bytes + BESIDE_BYTES)
    folder = {"name": CACHE_MOUNT["name"], "emptyDir": {"sizeLimit": disk}}
    transfer = transfer_placement(parameters)
    # Requests and limits are equal, so that pods of the class Guaranteed stay in it.
    limits = without_empty({"cpu": transfer.cpu, "memory": transfer.memory})
    resources = {"requests": {**limits, "ephemeral-storage": disk}, "limits": limits}
    cache = {"container": {**made["container"], "resources": resources}, "volumes": [folder, *made["volumes"]]}
    return replace(parameters, placement=replace(parameters.placement, shard_cache=cache))
