"""The decision of a run to train, or to reuse the latest model because training would only reproduce it.

The status of a pod alone tells which image a name without a digest stands for.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubetrain_components.jobs.job import Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import MAIN
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.published_model import PublishedModel, latest_model

STAGE = "inspect_image"


@dataclass(frozen=True, kw_only=True)
class ImageVersion:
    """The name of an image, and the content that it stood for when a pod ran it."""

    name: str
    id: str = ""
    """The image ID in the status of a pod; empty if it is unknown."""

    @property
    def content(self) -> str:
        """The digest in the name or else in the ID; empty if neither has one."""
        _, named, digest = self.name.partition("@")
        return digest if named else self.id.rpartition("@")[2]


def model_to_reuse(parameters: RunParameters, dataset_digest: str, image_id: Callable[[], str]) -> dict[str, Any]:
    """Return the latest model if training would only reproduce it, else an empty dictionary.

    Args:
        image_id: Starts a pod to find the ID of the training image. Called only if nothing else has changed.
    """
    if not parameters.skip_unchanged:
        return {}
    latest = latest_model(open_store(parameters.model_uri, parameters.s3_endpoint))
    reason = reason_to_train(latest, parameters, dataset_digest) or _reason_of_image(latest, parameters, image_id)
    if latest is None or reason:
        print(f"training is needed: {reason}", flush=True)
        return {}
    print(f"nothing to train: {latest.uri} of run {latest.run_id} is unchanged", flush=True)
    return latest.to_dict()


def reason_to_train(latest: PublishedModel | None, parameters: RunParameters, dataset_digest: str) -> str:
    """Return why the latest model cannot be reused; empty if it can, provided that the image has not changed."""
    if latest is None:
        return "no model is published yet"
    if latest.missing:
        return f"{', '.join(latest.missing)} of the latest model, {latest.uri}, is missing, or not as latest.json says"
    changes = {
        "dataset": (latest.dataset_digest, dataset_digest),
        "configuration": (latest.config_digest, parameters.train_config.digest),
    }
    changed = [f"the {name} is now {now}, not {before}" for name, (before, now) in changes.items() if before != now]
    return "; ".join(changed) or _reason_of_processes(latest, parameters)


def _reason_of_processes(latest: PublishedModel, parameters: RunParameters) -> str:
    """The number of processes multiplies the batch size. An elastic training may end with any number of its range."""
    least = (parameters.min_workers or parameters.workers) * parameters.processes_in_pod
    most = (parameters.max_workers or parameters.workers) * parameters.processes_in_pod
    if least <= latest.processes <= most:
        return ""
    now = f"{most}" if least == most else f"{least} to {most}"
    return f"the number of training processes is now {now}, not {latest.processes or 'known'} for the latest model"


def _reason_of_image(latest: PublishedModel | None, parameters: RunParameters, image_id: Callable[[], str]) -> str:
    before = ImageVersion(name=latest.image, id=latest.image_id) if latest else ImageVersion(name="")
    now = ImageVersion(name=parameters.placement.image)
    if not before.content:
        return f"the image of the latest model, {before.name}, has no digest, so it may have been another"
    if not now.content:
        now = ImageVersion(name=now.name, id=image_id())
    if not now.content:
        return f"the image {now.name} has no digest, so it may have changed"
    if before.content != now.content:
        return f"the image is now {now.name} ({now.content}), not {before.name} ({before.content})"
    return ""


def image_job_is_needed(parameters: RunParameters) -> bool:
    return parameters.skip_unchanged and not ImageVersion(name=parameters.placement.image).content


def image_job(parameters: RunParameters) -> Job:
    """Return a job whose pod runs the training image on a node for training and ends at once."""
    return Job(
        identity=JobIdentity(pipeline=parameters.pipeline, stage=STAGE, run_id=parameters.run_id),
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Image", count=1, command=("true",)),),
        placement=_image_placement(parameters.placement),
    )


def _image_placement(training: Placement) -> Placement:
    """Return the placement of the training's pods, without what the image alone does not need."""
    small = training.small("100m", memory="128Mi", shm_size="")
    nothing = {"volumes": None, "containers": [{"name": MAIN, "volumeMounts": None}]}
    return small.patched({"spec": nothing})
