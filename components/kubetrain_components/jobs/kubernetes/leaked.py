"""Services, TrainingRuntimes and etcds without a job: their launcher was killed before it created the job."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from kubetrain_components.jobs.annotations import MANAGED_BY
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.manifests.etcd import ETCD_LABEL, ETCD_OF_LABEL
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import INSTANCE_LABEL
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import companion_resource
from kubetrain_components.jobs.kubernetes.served import list_if_served
from kubetrain_components.manifest import Manifest

OURS = ",".join(f"{key}={value}" for key, value in MANAGED_BY.items())
MINIMUM_AGE = timedelta(hours=1)
"""Time for a launcher to create the job, and to make it own the object."""


def leaked_companions(api: KubernetesApi, kind: JobKind, jobs: Iterable[Manifest], now: datetime) -> list[Manifest]:
    """Return the objects that belong to no job and to no run.

    Args:
        jobs: All jobs of this kind that are ours.

    Raises:
        Forbidden: if our account may not list these objects.
    """
    if kind.traits.roles:  # its operator needs no such object
        return []
    instances = {_instance(job) for job in jobs}
    found = list_if_served(api, companion_resource(kind), labelSelector=f"{OURS},{INSTANCE_LABEL}")
    return [item for item in found if _instance(item) not in instances and _is_abandoned(item, now)]


def unneeded_etcds(
    api: KubernetesApi, kind: JobKind, jobs: Iterable[Manifest], ended: Iterable[Manifest], now: datetime
) -> list[Manifest]:
    """Return the etcds without a job, and those of jobs that have ended.

    A run that owns one without a job does not need it: unlike a Service it costs a pod, and a retry creates another.

    Args:
        jobs: All jobs of this kind that are ours.
        ended: Those of them that ended long enough ago.
    """
    if not kind.traits.can_be_elastic:
        return []
    known, over = ({_label(job, ETCD_LABEL) for job in item} for item in (jobs, ended))
    of_kind = f"{OURS},{ETCD_OF_LABEL}={kind.value}"
    found = list_if_served(api, JobKind.BATCH_JOB.traits.resource, labelSelector=of_kind)
    return [
        item
        for item in found
        if (instance := _label(item, ETCD_LABEL)) in over or (instance not in known and _is_old(item, now))
    ]


def _is_abandoned(companion: Manifest, now: datetime) -> bool:
    return _is_old(companion, now) and not companion["metadata"].get("ownerReferences")


def _is_old(companion: Manifest, now: datetime) -> bool:
    return now - datetime.fromisoformat(companion["metadata"]["creationTimestamp"]) >= MINIMUM_AGE


def _instance(manifest: Manifest) -> str | None:
    return _label(manifest, INSTANCE_LABEL)


def _label(manifest: Manifest, name: str) -> str | None:
    return (manifest["metadata"].get("labels") or {}).get(name)
