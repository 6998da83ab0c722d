"""Why a run failed: the messages that its pods left in its Workflow, and the errors in the logs of its steps.

The v2beta1 API of Kubeflow Pipelines leaves a run's error empty, and forgets that a run was canceled that had only just
started. Both sources are evidence beside the state of a run: where they cannot be had, the state is still reported.
"""

import re
from collections.abc import Iterable, Sequence

from kubetrain_components.manifest import Manifest
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import StageState
from kubetrain_pipelines.kubeflow.step_logs import StepLogs
from kubetrain_pipelines.kubeflow.workflow_nodes import step_of
from kubetrain_trainer.errors import KubetrainError

EXIT = re.compile(r"^main: Error \(exit code \d+\)(: )?")
"""The beginning of a message, or all of it if the step's program said nothing itself."""
STEP_ERROR = re.compile(r"^error: (.+)$", re.M)
LAUNCHER_ERROR = re.compile(r"^F\d{4} .*\] failed to execute component: (?!exit status)(.+)$", re.M)
"""The launcher's own error, such as an upload that was refused; not the exit code of the step's program."""
MAX_BEGINNING, MAX_END = 100, 200


def workflows_of(api: KfpApi, run: Run) -> list[Manifest]:
    """Return the Workflows of a run, usually one; none if the cluster cannot be asked."""
    from kubetrain_pipelines.kubeflow.run_in_cluster import RunInCluster

    try:
        return RunInCluster.connect(api.connection.pods_namespace, run.id).workflows()
    except KubetrainError:
        return []


def were_canceled(workflows: Iterable[Manifest]) -> bool:
    """Return True if Kubeflow Pipelines terminated the run, and it was not retried since."""
    return any(workflow.get("spec", {}).get("activeDeadlineSeconds") == 0 for workflow in workflows)


def causes_of(api: KfpApi, run: Run, workflows: Sequence[Manifest]) -> list[str]:
    """Return one sentence for each failed step whose cause is known."""
    titles = {stage.place: stage.title for stage in run.stages}
    survived = titles.keys() - {stage.place for stage in run.failed_stages}
    causes = messages_in(workflows)
    causes |= _errors_in_logs(api, run, [stage for stage in run.failed_stages if stage.place not in causes])
    return [
        f"{titles.get(place, place.rpartition('.')[2])}: {cause}"
        for place, cause in causes.items()
        if place not in survived
    ]


def messages_in(workflows: Iterable[Manifest]) -> dict[str, str]:
    """Return the message of each failed step, from its last attempt, by the place of the step."""
    nodes = [node for workflow in workflows for node in workflow.get("status", {}).get("nodes", {}).values()]
    failed = [
        node
        for node in nodes
        if node.get("type") == "Pod" and node.get("phase") in ("Failed", "Error") and node.get("message")
    ]
    last = {step_of(node["name"]): node["message"] for node in sorted(failed, key=lambda each: each["startedAt"])}
    return {step: said for step, message in last.items() if (said := EXIT.sub("", message))}


def _errors_in_logs(api: KfpApi, run: Run, stages: Sequence[StageState]) -> dict[str, str]:
    logs = StepLogs(api, run).of(stages)
    return {log.stage.place: error for log in logs if (error := error_in(log.text))}


def error_in(log: str) -> str:
    """Return the last error of the step's program, or else that of the launcher around it; may be empty."""
    if errors := STEP_ERROR.findall(log):
        return str(errors[-1])
    errors = LAUNCHER_ERROR.findall(log)
    return f"Kubeflow Pipelines: {_shortened(errors[-1])}" if errors else ""


def _shortened(error: str) -> str:
    """Leave out the middle of an error in Go, which begins with what failed and ends with why."""
    if len(error) <= MAX_BEGINNING + MAX_END:
        return error
    return f"{error[:MAX_BEGINNING].rpartition(' ')[0]} … {error[-MAX_END:].partition(' ')[2]}"
