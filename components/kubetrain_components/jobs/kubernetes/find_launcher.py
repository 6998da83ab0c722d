"""Find out what runs a training on this cluster: what already runs this one, else the best that the cluster has."""

import contextlib

from kubetrain_components.jobs.job import JobIdentity
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden, UnknownKind
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher


def find_launcher(api: KubernetesApi, wanted: Launcher, framework: str, identity: JobIdentity) -> tuple[Launcher, str]:
    """Return the launcher, and why."""
    if wanted is not Launcher.AUTO:
        return wanted, "as set"
    served = [each for each in LAUNCHERS if is_served(api, each, framework)]
    for launcher in served:
        if _has_jobs(api, launcher, framework, identity):
            return launcher, "it runs this training already"
    return served[0], f"the cluster has {served[0].kind(framework)}"


def is_served(api: KubernetesApi, launcher: Launcher, framework: str) -> bool:
    """Return True if the cluster knows the kind of job, which all accounts may ask."""
    version, plural = launcher.kind(framework).traits.resource
    with contextlib.suppress(UnknownKind):
        found = api.get(f"/apis/{version}") or {}
        return any(each["name"] == plural for each in found.get("resources") or [])
    return False


def _has_jobs(api: KubernetesApi, launcher: Launcher, framework: str, identity: JobIdentity) -> bool:
    path = api.path(*launcher.kind(framework).traits.resource)
    with contextlib.suppress(UnknownKind, Forbidden):
        return bool((api.get(path, labelSelector=identity.selector) or {}).get("items"))
    return False
