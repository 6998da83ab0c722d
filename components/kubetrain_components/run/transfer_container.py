"""The placement of the pods of a dataset transfer, and containers that fetch from S3 for other pods in the same way."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components import LATEST_PATH, OUTPUT_PATH
from kubetrain_components.jobs.annotations import LABEL_PREFIX
from kubetrain_components.jobs.job import OWN_PROGRAM, Job, Replica
from kubetrain_components.jobs.job_identity import LABEL_LENGTH, JobIdentity, slug
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template
from kubetrain_components.jobs.kubernetes.manifests.volumes import CODE_MOUNT, TRAINER_MOUNT
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import merge, pod_patch
from kubetrain_components.manifest import Manifest, without_empty
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.run.parameters import RunParameters
from kubetrain_trainer.output.output_store import VARIABLE as OUTPUT_VARIABLE

STAGING_LABEL = LABEL_PREFIX + "staging"
"""Label of pods that write to a staging PVC: its name."""
TRANSFER = {"cpu": "1", "memory": "1Gi", "shm_size": ""}
"""Resources of the transfer's pod, which do not grow with the dataset."""
CACHE_MOUNT = {"name": "kubetrain-shard-cache", "mountPath": "/shard-cache"}
CACHE_PROGRAM = "kubetrain_components.serve_shards.serve"
OUTPUT_MOUNT = {"name": "kubetrain-output", "mountPath": OUTPUT_PATH}
OUTPUT_PROGRAM = "kubetrain_components.keep_output.serve"
BESIDE_BYTES = 1 << 30
"""Space that is not for shards: a node evicts a pod at the limit, even if only its measurement is inexact."""

LATEST_MOUNT = {"name": "kubetrain-latest-model", "mountPath": LATEST_PATH}
LATEST_PROGRAM = "kubetrain_components.fetch_model.fetch"

CODE_BYTES = "200Mi"
TRAINER_BYTES = "10Mi"
CODE_PROGRAM = "kubetrain_components.bring_code.fetch"
TRAINER_PROGRAM = "kubetrain_components.bring_code.copy_trainer"

RESOURCES = {"cpu": "500m", "memory": "512Mi"}
"""Requests and limits are equal, so that pods of the class Guaranteed stay in it."""


def transfer_placement(parameters: RunParameters) -> Placement:
    """The placement of the transfer's pod, which does not use the nodes of the training pods."""
    training, settings = parameters.placement, {**TRANSFER, **Placement.some_of(parameters.storage.transfer)}
    shared: dict[str, Any] = {"user": training.user, "image": parameters.components_image}
    if training.scheduler == "kueue":  # the only gang scheduler that also queues plain jobs
        shared |= {"scheduler": "kueue", "queue": training.queue}
    pod = merge(training.any_pod(settings["cpu"], "tolerations"), _access_to_s3(parameters.s3_secret))
    if parameters.syncs and parameters.storage.staging.access_mode == "ReadWriteOnce":
        pod = merge(pod, _near_others(slug(parameters.storage.staging_claim, LABEL_LENGTH)))
    return Placement.from_dict({**shared, **settings, "pod": merge(pod, settings.get("pod", {}))})


def _access_to_s3(secret: str) -> Manifest:
    return pod_patch(main={"envFrom": [{"secretRef": {"name": secret, "optional": True}}]})


def _near_others(claim: str) -> Manifest:
    """Prefer the node of other runs' transfers, because only pods of one node can use the volume at once."""
    labels = {STAGING_LABEL: claim}
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": "kubernetes.io/hostname"}
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 100, "podAffinityTerm": term}]}
    return pod_patch({"affinity": {"podAffinity": preferred}}, labels=labels)


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
    placement = transfer_placement(parameters)
    container = _container(parameters, placement, command)
    resources = {"requests": RESOURCES, "limits": RESOURCES}
    own = {"name": mount["name"], "volumeMounts": [*container.get("volumeMounts", []), mount], "resources": resources}
    return {"container": {**container, **own}, "volumes": list(placement.spec.get("volumes") or [])}


def _container(parameters: RunParameters, placement: Placement, command: tuple[str, ...]) -> Manifest:
    replica = Replica(role="Fetch", count=1, command=command, env=OWN_PROGRAM)
    identity = JobIdentity(pipeline=parameters.pipeline, stage="fetch", run_id=parameters.run_id)
    job = Job(identity=identity, kind=JobKind.BATCH_JOB, replicas=(replica,), placement=placement)
    container: Manifest = pod_template(job, replica)["spec"]["containers"][0]
    return container


def fetching(
    container: Manifest, mount: Manifest, volume: Manifest, others: Sequence[Manifest], *, read_only: bool = True
) -> Manifest:
    """Return the patch of a pod in which a container shares a volume with the main one, which reads or also writes."""
    volumes = [{"name": mount["name"], "emptyDir": volume}, *others]
    return pod_patch(
        {"initContainers": [container], "volumes": volumes},
        {"volumeMounts": [{**mount, "readOnly": True} if read_only else mount]},
    )


def with_code(parameters: RunParameters) -> RunParameters:
    """Return the parameters, whose training pods fetch the archive that train_config names, if any."""
    if not (digest := parameters.train_config.code):
        return parameters
    code = transfer_container(parameters, parameters.model_uri, CODE_MOUNT, CODE_PROGRAM, "--digest", digest)
    pod = fetching(code["container"], CODE_MOUNT, {"sizeLimit": CODE_BYTES}, code["volumes"])
    return replace(parameters, placement=parameters.placement.based_on(pod))


def in_image(parameters: RunParameters, trainer_image: str) -> RunParameters:
    """Return the parameters, whose pods have the user's image, or else this one.

    Into the user's, a container brings what runs an entry.
    """
    placement = parameters.placement
    if not placement.image or not parameters.train_config.entry:
        return replace(parameters, placement=replace(placement, image=placement.image or trainer_image))
    command = ("python", "-m", TRAINER_PROGRAM, "--to", TRAINER_MOUNT["mountPath"])
    bringing = _container(parameters, Placement(image=parameters.components_image, user=placement.user), command)
    resources = {"requests": RESOURCES, "limits": RESOURCES}
    own = {"name": TRAINER_MOUNT["name"], "volumeMounts": [TRAINER_MOUNT], "resources": resources}
    pod = fetching({**bringing, **own}, TRAINER_MOUNT, {"sizeLimit": TRAINER_BYTES}, ())
    return replace(parameters, placement=placement.based_on(pod))


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
    return evaluation.based_on(fetching(latest["container"], LATEST_MOUNT, {}, latest["volumes"]))


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
    sidecar = _sidecar(parameters, made["container"], disk)
    pod = fetching(sidecar, CACHE_MOUNT, {"sizeLimit": disk}, made["volumes"])
    return replace(parameters, placement=parameters.placement.based_on(pod))


def with_output(parameters: RunParameters) -> RunParameters:
    """Return the parameters, whose pods keep their output in a store if storage.output names one."""
    if not parameters.framework or not (uri := parameters.storage.output):
        return parameters
    made = transfer_container(parameters, uri, OUTPUT_MOUNT, OUTPUT_PROGRAM)
    disk = {"sizeLimit": parameters.storage.output_size}
    pod = fetching(_sidecar(parameters, made["container"]), OUTPUT_MOUNT, disk, made["volumes"], read_only=False)
    placement = parameters.placement.based_on(pod)
    env = {**placement.env, OUTPUT_VARIABLE: OUTPUT_PATH}
    return replace(parameters, placement=replace(placement, env=env))


def _sidecar(parameters: RunParameters, container: Manifest, disk: str = "") -> Manifest:
    """Return the container as one that runs until the others have ended: an init container that restarts."""
    transfer = transfer_placement(parameters)
    # Requests and limits are equal, so that pods of the class Guaranteed stay in it.
    limits = without_empty({"cpu": transfer.cpu, "memory": transfer.memory})
    resources = {"requests": without_empty({**limits, "ephemeral-storage": disk}), "limits": limits}
    return {**container, "resources": resources, "restartPolicy": "Always"}
