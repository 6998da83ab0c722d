"""Sum up by job what pods request and use. Pure functions."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from functools import reduce
from operator import add
from typing import Any

from kubetrain_components.jobs.annotations import RUN_ID
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_components.jobs.kubernetes.pod_end import has_ended, status_of
from kubetrain_components.jobs.kubernetes.served import Resource, is_served
from kubetrain_components.jobs.placement import is_gpu
from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.jobs.pod_resources import Amounts, merged, parsed, resources_of

PODS, METRICS = ("v1", "pods"), ("metrics.k8s.io/v1beta1", "pods")
NOT_SERVED = "the cluster does not serve metrics.k8s.io: install metrics-server"

Key = tuple[str, str]
"""Namespace and name of an object."""

GIB = 2**30
HEADINGS = ("JOB", "PODS", "GPUS", "CPUS", "MEMORY")


@dataclass(frozen=True, kw_only=True)
class JobUsage:
    namespace: str
    job: str
    pods: int
    """Number of pods that have not ended."""
    placed: int
    """Number of those that have a node, and so hold what they request."""
    requested: Amounts
    """Requests of the pods that have a node."""
    used: Amounts | None
    """None: unknown."""

    @property
    def gpus(self) -> int:
        return int(sum(number for name, number in self.requested.items() if is_gpu(name)))

    def to_dict(self) -> dict[str, Any]:
        used = None if self.used is None else {name: float(value) for name, value in self.used.items()}
        requested = {name: float(value) for name, value in self.requested.items()}
        places = {"namespace": self.namespace, "job": self.job, "pods": self.pods, "placed": self.placed}
        return {**places, "gpus": self.gpus, "requested": requested, "used": used}


def usage_by_job(pods: Iterable[Manifest], metrics: Sequence[Manifest] | None) -> list[JobUsage]:
    """Return the usage of each job with pods that have not ended, the largest first.

    Args:
        metrics: The use of each pod, as metrics.k8s.io reports it; None: unknown.
    """
    used = {
        _key(metric): _sum(parsed(container["usage"]) for container in metric["containers"]) for metric in metrics or ()
    }
    by_job: dict[Key, list[Manifest]] = {}
    for pod in pods:
        if not has_ended(pod):
            by_job.setdefault((pod["metadata"]["namespace"], _job_of(pod)), []).append(pod)
    found = [_usage(namespace, job, of_job, used) for (namespace, job), of_job in by_job.items()]
    return sorted(found, key=lambda each: (-each.gpus, -each.requested.get("cpu", Decimal()), each.namespace, each.job))


def _usage(namespace: str, job: str, pods: Sequence[Manifest], used: Mapping[Key, Amounts]) -> JobUsage:
    placed = [pod for pod in pods if "nodeName" in pod["spec"]]
    running = [used.get(_key(pod)) for pod in placed if status_of(pod).get("phase") == "Running"]
    known = [item for item in running if item is not None]
    is_known = len(known) == len(running) and bool(known or not placed)
    return JobUsage(
        namespace=namespace,
        job=job,
        pods=len(pods),
        placed=len(placed),
        requested=_sum(resources_of(pod["spec"]) for pod in placed),
        used=_sum(known) if is_known else None,
    )


def _job_of(pod: Manifest) -> str:
    """Return the name of the pod's job: a TrainJob's comes before that of the Job that it is made of."""
    labels = pod["metadata"]["labels"]
    names = (labels.get(kind.traits.job_name_label) for kind in JobKind)
    return next(filter(None, names), "-")


def _key(item: Manifest) -> Key:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _sum(amounts: Iterable[Amounts]) -> Amounts:
    return reduce(lambda one, other: merged(add, one, other), amounts, {})


def table_of(usages: Iterable[JobUsage]) -> list[str]:
    """Return the lines of a table, with the namespaces as headings."""
    by_namespace: dict[str, list[JobUsage]] = {}
    for usage in usages:
        by_namespace.setdefault(usage.namespace, []).append(usage)
    rows = [HEADINGS, *(_row(item) for found in by_namespace.values() for item in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for namespace, found in sorted(by_namespace.items()):
        lines += [f"namespace {namespace}", *(_line(row, widths) for row in (HEADINGS, *map(_row, found)))]
    return lines


def _row(usage: JobUsage) -> tuple[str, ...]:
    cpus = f"{_short(usage.used, 'cpu')}/{_short(usage.requested, 'cpu')}"
    memory = f"{_short(usage.used, 'memory', GIB)}/{_short(usage.requested, 'memory', GIB)}Gi"
    return usage.job, f"{usage.placed}/{usage.pods}", str(usage.gpus), cpus, memory


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    job, *others = (f"{cell:>{width}}" for cell, width in zip(row, widths, strict=True))
    return "  ".join([f"{job.strip():<{widths[0]}}", *others])


def _short(amounts: Amounts | None, name: str, unit: int = 1) -> str:
    if amounts is None:
        return "-"
    return f"{amounts.get(name, Decimal()) / unit:.2f}".rstrip("0").rstrip(".")


def read_usage(api: KubernetesApi, *, all_namespaces: bool) -> tuple[list[JobUsage], str]:
    """Return the usage of the jobs, and why the use is unknown, if it is.

    Raises:
        KubernetesError: if the pods cannot be listed.
    """
    pods = _list(api, PODS, all_namespaces=all_namespaces)
    try:
        if not is_served(api, METRICS):
            return usage_by_job(pods, None), NOT_SERVED
        return usage_by_job(pods, _list(api, METRICS, all_namespaces=all_namespaces)), ""
    except KubernetesError as error:
        return usage_by_job(pods, None), str(error)


def _list(api: KubernetesApi, resource: Resource, *, all_namespaces: bool) -> list[Manifest]:
    path = api.path(*resource)
    if all_namespaces:
        path = path.replace(f"/namespaces/{api.namespace}", "")
    found: Any = api.list_all(path, labelSelector=RUN_ID)
    return list((found or {}).get("items") or [])
