"""What a cluster has: objects of kinds that it may lack, such as an operator's, and what runs a training there."""

import contextlib
from collections.abc import Callable
from typing import Any

from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden, UnknownKind
from kubetrain_components.jobs.launchers import ALL_LAUNCHERS, Launcher
from kubetrain_components.manifest import Manifest, without_managed_fields
from kubetrain_trainer.errors import InvalidSetting

Resource = tuple[str, str]
"""API version and plural."""


def is_served(api: KubernetesApi, resource: Resource) -> bool:
    """Return True if the cluster has these objects, which all accounts may ask."""
    version, plural = resource
    try:
        found = api.get(f"/{'api' if version == 'v1' else 'apis'}/{version}") or {}
    except UnknownKind:
        return False
    return any(item["name"] == plural for item in found.get("resources") or [])


def list_if_served(
    api: KubernetesApi, resource: Resource, keep: Callable[[Manifest], Manifest] = without_managed_fields, **query: Any
) -> list[Manifest]:
    """Return the objects; none if the cluster does not have this kind.

    Raises:
        Forbidden: if our account may not list them, although the cluster has the kind.
    """
    try:
        return list((api.list_all(api.path(*resource), keep, **query) or {}).get("items") or [])
    except UnknownKind:
        return []
    except Forbidden:  # also the answer for kinds that the cluster does not have
        if is_served(api, resource):
            raise
        return []


def find_launcher(api: KubernetesApi, wanted: Launcher, framework: str, identity: JobIdentity) -> tuple[Launcher, str]:
    """Return the launcher, and why.

    Raises:
        InvalidSetting: if the cluster lacks the one that is set, or another one runs this training already.
    """
    served = [item for item in ALL_LAUNCHERS if is_served(api, item.kind(framework).traits.resource)]
    jobs = {item: _jobs(api, item, framework, identity) for item in served}
    if wanted is not Launcher.AUTO:
        if wanted not in served:
            kind = wanted.kind(framework)
            raise InvalidSetting(f"pods.launcher is '{wanted}', but the cluster has no {kind}: install it, or set auto")
        _check_no_other(wanted, jobs)
        return wanted, "as set"
    for launcher in served:
        if jobs[launcher]:
            return launcher, "it runs this training already"
    return served[0], f"the cluster has {served[0].kind(framework)}"


def _jobs(api: KubernetesApi, launcher: Launcher, framework: str, identity: JobIdentity) -> list[Manifest]:
    with contextlib.suppress(Forbidden):
        found = list_if_served(api, launcher.kind(framework).traits.resource, labelSelector=identity.selector)
        return [
            item for item in found if identity.has_attempt(item["metadata"]["name"])
        ]  # another pipeline's run may have its ID
    return []


def _check_no_other(wanted: Launcher, jobs: dict[Launcher, list[Manifest]]) -> None:
    """Refuse a second job of the training, which would write to the same folder."""
    for launcher in jobs.keys() - {wanted}:
        for job in jobs[launcher]:
            raise InvalidSetting(
                f"pods.launcher is '{wanted}', but job {job['metadata']['name']} of launcher {launcher} has this "
                f"training: delete that job, or set pods.launcher to auto or {launcher}"
            )
