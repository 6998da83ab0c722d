"""What a job needs beside it: its own etcd, if it has one, and without an operator a Service or a TrainingRuntime.

It must exist before the job, and then belongs to it, so that the cluster deletes it with the job.
"""

import contextlib
import secrets
import time
from collections.abc import Iterable, Iterator, Mapping

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_components.jobs.kubernetes.manifests.etcd import ETCD_LABEL, etcd_label, etcd_name, etcd_service
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import INSTANCE_LABEL, instance_label
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import (
    companion_manifest,
    companion_resource,
    needs_instance,
    own_etcd_manifest,
)
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.errors import KubetrainError

SETTLE_SECONDS = 10.0
NOT_SEEN = "specified trainingRuntime must be created before"
"""The words of Trainer's webhook for a runtime that it has not seen yet."""
SEEN_SECONDS, PAUSE_SECONDS = 30.0, 0.1


@contextlib.contextmanager
def companions(api: KubernetesApi, job: Job, owner: Manifest | None) -> Iterator[str]:
    """Create the objects and yield their instance, which is empty if the job needs none.

    After the block, they belong to the job; they are deleted if the block did not create the job.
    """
    if not needs_instance(job):
        yield ""
        return
    instance = secrets.token_hex(4)
    companion, etcd = (make(job, owner, instance) for make in (companion_manifest, own_etcd_manifest))
    try:
        if companion is not None:
            api.create(api.path(*companion_resource(job.kind)), companion)
        if etcd is not None:
            api.create(api.path("v1", "services"), etcd_service(api.create(_etcd_path(api), etcd)))
        yield instance
    finally:
        # In case of an error, they still belong to the run.
        with contextlib.suppress(KubetrainError), interrupts_deferred():
            ours = {**(instance_label(instance) if companion else {}), **etcd_label(job, instance)}
            _settle(api, job, ours)


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


def own_companions(api: KubernetesApi, job: JobHandle, labels: Mapping[str, str]) -> None:
    """Let the job own them.

    Args:
        labels: The labels of the job.
    """
    owner = {"apiVersion": job.kind.traits.api_version, "kind": job.kind.value, "name": job.name, "uid": job.uid}
    for path in _paths(api, job.kind, job.name, labels):
        api.patch(path, {"metadata": {"ownerReferences": [owner]}}, SETTLE_SECONDS)


def delete_etcd(api: KubernetesApi, job: JobHandle, labels: Mapping[str, str], retry_seconds: float) -> None:
    """Delete the etcd of a job that has ended and is kept."""
    if instance := labels.get(ETCD_LABEL):
        api.delete(_etcd_path(api, etcd_name(job.name, instance)), retry_seconds=retry_seconds)


def _settle(api: KubernetesApi, job: Job, labels: Mapping[str, str]) -> None:
    """Look for the job, because it may exist although the block raised: an answer was lost, or an interrupt came.

    Args:
        labels: Those of the job that the block should have created.
    """
    if not (paths := list(_paths(api, job.kind, job.identity.name, labels))):
        return
    found = api.get(api.path(*job.kind.traits.resource, job.identity.name), retry_seconds=SETTLE_SECONDS)
    metadata = found["metadata"] if found else {}
    created = metadata.get("labels") or {}
    if labels.items() <= created.items():
        own_companions(api, JobHandle(kind=job.kind, name=job.identity.name, uid=metadata["uid"]), labels)
        return
    for path in paths:
        api.delete(path, retry_seconds=SETTLE_SECONDS)


def _paths(api: KubernetesApi, kind: JobKind, name: str, labels: Mapping[str, str]) -> Iterable[str]:
    """Yield the paths of the objects beside a job with these labels."""
    if (instance := labels.get(INSTANCE_LABEL)) and not kind.traits.roles:
        yield api.path(*companion_resource(kind), f"{name}-{instance}")
    if instance := labels.get(ETCD_LABEL):
        yield _etcd_path(api, etcd_name(name, instance))


def _etcd_path(api: KubernetesApi, name: str = "") -> str:
    return api.path(*JobKind.BATCH_JOB.traits.resource, name)
