"""Services and TrainingRuntimes without a job: their launcher was killed before it created the job."""

from collections.abc import Iterable
from datetime import datetime, timedelta

from kubetrain_components.jobs.job import MANAGED_BY
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.indexed_job import INSTANCE_LABEL
from kubetrain_components.jobs.kubernetes.manifests import companion_resource
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
    if kind.traits.framework:  # its operator needs no such object
        return []
    instances = {_instance(job) for job in jobs}
    found = list_if_served(api, companion_resource(kind), labelSelector=f"{OURS},{INSTANCE_LABEL}")
    return [each for each in found if _instance(each) not in instances and _is_abandoned(each, now)]


def _is_abandoned(companion: Manifest, now: datetime) -> bool:
    metadata = companion["metadata"]
    is_old = now - datetime.fromisoformat(metadata["creationTimestamp"]) >= MINIMUM_AGE
    return is_old and not metadata.get("ownerReferences")


def _instance(manifest: Manifest) -> str | None:
    return (manifest["metadata"].get("labels") or {}).get(INSTANCE_LABEL)
