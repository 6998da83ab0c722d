"""The last lines of a pod that failed, requested anew: its stream may be minutes behind."""

from typing import Any

from kubetrain_components.jobs.job_state import JobHandle
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.container_log import NO_LOG
from kubetrain_components.jobs.kubernetes.pod_end import container_status
from kubetrain_components.jobs.kubernetes.state import pods_by_replica
from kubetrain_components.jobs.verdict import KEPT_LINES

REQUEST_SECONDS = 10.0
RUNS: dict[str, dict[str, str]] = {"state": {}, "lastState": {"previous": "true"}}
"""Fields of a container's status that may have an end, with the query for the log of that run."""


def read_last_lines(api: KubernetesApi, job: JobHandle, pod: str) -> list[str]:
    """Return the last lines of the newest run of a replica that has ended; none if none has."""
    traits, path = job.kind.traits, api.path("v1", "pods")
    found = api.get(path, retry_seconds=REQUEST_SECONDS, labelSelector=f"{traits.job_name_label}={job.name}") or {}
    for each in reversed(pods_by_replica(found.get("items") or []).get(pod, [])):
        status = container_status(traits.container, each)
        for query in (RUNS[field] for field in RUNS if "terminated" in (status.get(field) or {})):
            return _read(api, f"{path}/{each['metadata']['name']}/log", container=traits.container, **query)
    return []


def _read(api: KubernetesApi, path: str, **query: Any) -> list[str]:
    limits = {"read_timeout": REQUEST_SECONDS, "retry_seconds": REQUEST_SECONDS}
    with api.stream(path, **limits, tailLines=KEPT_LINES, **query) as stream:
        lines = b"".join(stream).splitlines()
    return [line.decode(errors="replace") for line in lines if not NO_LOG.match(line)]
