"""The logs of a run's steps, and the causes of its failure.

The v2beta1 API of Kubeflow Pipelines has no logs and leaves a run's error empty. Its v1alpha1 API serves the log of a
pod by name; the run's details contain the end of that name.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.run import Run

if TYPE_CHECKING:
    from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

LOG = "/apis/v1alpha1/runs/{run}/nodes/{workflow}-{template}-{number}/log"
PROGRAM = "system-container-impl"
# The template of a step with pod annotations or labels has their counts in its name. The usual ones come first.
TEMPLATES = (PROGRAM, *(f"metadata-{counts}-{PROGRAM}" for counts in "1-1 0-1 1-0 1-2 2-1 2-2 0-2 2-0".split()))
NO_LOG = re.compile(r'\{"error_message"')
ERROR_LINE = re.compile(r"^error: (.+)$", re.M)


class NoLog(KfpError):
    """Nothing has been logged yet, or the log was not kept."""


@dataclass(frozen=True)
class StepLog:
    task: str
    text: str


def causes_of(api: KfpApi, run: Run) -> list[str]:
    """Return one sentence for each failed step whose cause is known."""
    try:
        found = _in_cluster(api, run).causes()
    except KubernetesError:
        failed = {stage.task for stage in run.failed_stages}
        found = [
            (log.task, errors[-1])
            for log in _logs_by_kfp(api, run)
            if log.task in failed and (errors := ERROR_LINE.findall(log.text))
        ]
    titles = {stage.task: stage.title for stage in run.stages}
    return [f"{titles.get(task, task)}: {cause}" for task, cause in found]


def logs_of(api: KfpApi, run: Run) -> list[StepLog]:
    """Return the logs of all attempts of all steps, in the order in which the steps started.

    Kubeflow Pipelines is tried first, because it keeps logs longer than the cluster keeps pods.

    Raises:
        NoLog: if there is none.
    """
    if logs := list(_logs_by_kfp(api, run)):
        return logs
    try:
        return [StepLog(task, text) for task, text in _in_cluster(api, run).logs()]
    except KubernetesError as error:
        raise NoLog(
            f"no log of run {run.id}: Kubeflow Pipelines has none, and the cluster cannot be asked ({error})"
        ) from error


def _in_cluster(api: KfpApi, run: Run) -> "RunInCluster":
    from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

    return RunInCluster.connect(api.connection.pods_namespace, run.id)


def _logs_by_kfp(api: KfpApi, run: Run) -> Iterator[StepLog]:
    for stage in run.stages:
        for node in run.attempts_of(stage):
            if (text := _log_of_node(api, run, node)) is not None:
                yield StepLog(stage.task, text)


def _log_of_node(api: KfpApi, run: Run, node: str) -> str | None:
    """Try each name that the node's pod may have."""
    workflow, _, number = node.rpartition("-")
    for template in TEMPLATES:
        text = api.get_text(LOG.format(run=run.id, workflow=workflow, template=template, number=number))
        if not NO_LOG.match(text):
            return text
    return None
