"""Why a run failed, and what its steps wrote.

The v2beta1 API of Kubeflow Pipelines leaves a run's error empty and has no logs. A route of v1alpha1 serves the log of
a pod whose name one knows; the run's details have the end of that name.
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
# A step whose pod was given annotations or labels has their numbers in its template's name: those of ours come first.
TEMPLATES = (PROGRAM, *(f"metadata-{numbers}-{PROGRAM}" for numbers in "1-1 0-1 1-0 1-2 2-1 2-2 0-2 2-0".split()))
NO_LOG = re.compile(r'\{"error_message"')
LAST_WORDS = re.compile(r"^error: (.+)$", re.M)


class NoLog(KfpError):
    """Nothing has been written so far, or nobody kept it."""


@dataclass(frozen=True)
class StepLog:
    task: str
    text: str


def causes_of(api: KfpApi, run: Run) -> list[str]:
    """A sentence for each step that failed; empty where nobody can say, or may."""
    try:
        found = _in_cluster(api, run).causes()
    except KubernetesError:
        found = [
            (log.task, words[-1])
            for log in _logs_by_kfp(api, run)
            if log.task in {stage.task for stage in run.failed_stages} and (words := LAST_WORDS.findall(log.text))
        ]
    titles = {stage.task: stage.title for stage in run.stages}
    return [f"{titles.get(task, task)}: {words}" for task, words in found]


def logs_of(api: KfpApi, run: Run) -> list[StepLog]:
    """Of each step that has one, in the order in which they began; a step that was tried again has several.

    Kubeflow Pipelines keeps logs for longer than the cluster keeps pods.

    Raises:
        NoLog: where nobody has or gives one.
    """
    if logs := list(_logs_by_kfp(api, run)):
        return logs
    try:
        return [StepLog(task, text) for task, text in _in_cluster(api, run).logs()]
    except KubernetesError as trouble:
        raise NoLog(
            f"Kubeflow Pipelines has no log of run {run.id}, and the cluster gives none: {trouble}"
        ) from trouble


def _in_cluster(api: KfpApi, run: Run) -> "RunInCluster":
    from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

    return RunInCluster.connect(api.connection.pods_namespace, run.id)


def _logs_by_kfp(api: KfpApi, run: Run) -> Iterator[StepLog]:
    for stage in run.stages:
        for node in run.tries_of(stage):
            if (text := _log_of_node(api, run, node)) is not None:
                yield StepLog(stage.task, text)


def _log_of_node(api: KfpApi, run: Run, node: str) -> str | None:
    """Under that of the names which its pod may have."""
    workflow, _, number = node.rpartition("-")
    for template in TEMPLATES:
        text = api.get_text(LOG.format(run=run.id, workflow=workflow, template=template, number=number))
        if not NO_LOG.match(text):
            return text
    return None
