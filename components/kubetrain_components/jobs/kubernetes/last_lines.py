"""The last lines of a pod that failed, requested anew: its stream may be minutes behind."""

from collections.abc import Sequence

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.container_log import NO_LOG
from kubetrain_components.jobs.kubernetes.pod_end import container_status
from kubetrain_components.jobs.verdict import TAIL_LINES
from kubetrain_components.manifest import Manifest

REQUEST_SECONDS = 10.0
RUNS: dict[str, dict[str, str]] = {"state": {}, "lastState": {"previous": "true"}}
"""Where the status of a container has an end, and the query for the log of the run that ended."""


def read_last_lines(api: KubernetesApi, container: str, pods: Sequence[Manifest]) -> list[str]:
    """Return the last lines of the newest run that has ended, of the pods of one replica, oldest first."""
    for pod in reversed(pods):
        status = container_status(container, pod)
        for query in (RUNS[field] for field in RUNS if "terminated" in (status.get(field) or {})):
            return _read(api, pod["metadata"]["name"], {"container": container, **query})
    return []


def _read(api: KubernetesApi, pod: str, query: dict[str, str]) -> list[str]:
    path, seconds = api.path("v1", "pods", f"{pod}/log"), REQUEST_SECONDS
    with api.stream(path, read_timeout=seconds, retry_seconds=seconds, tailLines=TAIL_LINES, **query) as stream:
        lines = b"".join(stream).splitlines()
    return [line.decode(errors="replace") for line in lines if not NO_LOG.match(line)]
