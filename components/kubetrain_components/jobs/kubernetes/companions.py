"""The object that a training without an operator needs beside its job: a Service, or the runtime of a TrainJob.

It must exist before the job, and then belongs to it, so that the cluster deletes it with the job.
"""

import contextlib
import secrets
import time
from collections.abc import Iterator, Mapping

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.job import Job, JobHandle
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_components.jobs.kubernetes.indexed_job import INSTANCE_LABEL
from kubetrain_components.jobs.kubernetes.manifests import companion_manifest, companion_resource
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

SETTLE_SECONDS = 10.0
NOT_SEEN = "specified trainingRuntime must be created before"
"""What Trainer's webhook says of a runtime that it has not seen yet."""
SEEN_SECONDS, PAUSE_SECONDS = 30.0, 0.1


@contextlib.contextmanager
def companion(api: KubernetesApi, job: Job, owner: Manifest | None) -> Iterator[str]:
    """Create the object and yield its instance, which is empty if the job needs no such object.

    After the block, it belongs to the job; it is deleted if the block did not create the job.
    """
    instance = secrets.token_hex(4)
    if (manifest := companion_manifest(job, owner, instance)) is None:
        yield ""
        return
    path = api.path(*companion_resource(job.kind))
    try:
        api.create(path, manifest)
        yield instance
    finally:
        # In case of an error, it still belongs to the run.
        with contextlib.suppress(KubetrainError), interrupts_deferred():
            _settle(api, job, instance, f"{path}/{manifest['metadata']['name']}")


def create_beside(api: KubernetesApi, path: str, job: Manifest) -> Manifest:
    """Create the job once its companion, which exists, has been seen."""
    deadline = time.monotonic() + SEEN_SECONDS
    while True:
        try:
            return api.create(path, job)
        except KubernetesError as error:
            if NOT_SEEN not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_SECONDS)


def own_companion(api: KubernetesApi, job: JobHandle, labels: Mapping[str, str]) -> None:
    if instance := labels.get(INSTANCE_LABEL):
        owner = {"apiVersion": job.kind.traits.api_version, "kind": job.kind.value, "name": job.name, "uid": job.uid}
        path = api.path(*companion_resource(job.kind), f"{job.name}-{instance}")
        api.patch(path, {"metadata": {"ownerReferences": [owner]}}, SETTLE_SECONDS)


def _settle(api: KubernetesApi, job: Job, instance: str, path: str) -> None:
    """Look for the job, because it may exist although the block raised: an answer was lost, or an interrupt came."""
    found = api.get(api.path(*job.kind.traits.resource, job.identity.name), retry_seconds=SETTLE_SECONDS)
    metadata = found["metadata"] if found else {}
    if (labels := metadata.get("labels") or {}).get(INSTANCE_LABEL) == instance:
        own_companion(api, JobHandle(kind=job.kind, name=job.identity.name, uid=metadata["uid"]), labels)
    else:
        api.delete(path, retry_seconds=SETTLE_SECONDS)
