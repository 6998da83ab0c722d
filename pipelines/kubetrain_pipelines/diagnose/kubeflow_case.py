"""Read what Kubeflow Pipelines tells about a run, and the cluster about its jobs."""

from pathlib import Path

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import KubernetesError
from kubetrain_pipelines.diagnose.case import ERROR, Case, Outcome
from kubetrain_pipelines.diagnose.cluster_case import ClusterReader
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.run import Run, titles_of
from kubetrain_pipelines.kubeflow.run_in_cluster import RETRY_SECONDS
from kubetrain_pipelines.kubeflow.run_status import status_of
from kubetrain_pipelines.kubeflow.stage_state import RunState
from kubetrain_pipelines.kubeflow.step_logs import StepLogs

OUTCOMES = {RunState.SUCCEEDED: Outcome.SUCCEEDED, RunState.FAILED: Outcome.FAILED}


def read_kubeflow_run(case: Case, api: KfpApi, message: Message, folder: Path) -> None:
    status = status_of(api, Run.of(message, titles_of(api, message)))
    names = [*case.names, f"run {status.run.id} ({status.run.name})"]
    _read_jobs(case, api, status.run.id, folder)
    case.names = names
    case.outcome = OUTCOMES.get(status.run.state, Outcome.RUNNING)
    case.documents["run.json"] = status.to_dict()
    case.statements += [("the run", f"{ERROR}{cause}") for cause in status.causes]
    _read_step_logs(case, api, status.run, folder)


def _read_jobs(case: Case, api: KfpApi, run_id: str, folder: Path) -> None:
    try:
        ClusterReader(KubernetesApi.connect(api.connection.pods_namespace, RETRY_SECONDS), case, folder).read_run(
            run_id
        )
    except KubernetesError as error:
        case.note_gap(f"jobs: {error}")


def _read_step_logs(case: Case, api: KfpApi, run: Run, folder: Path) -> None:
    for number, log in enumerate(StepLogs(api, run).of(run.failed_stages or run.stages)):
        name = f"step-{number}-{log.stage.task}.log"
        (folder / name).write_text(log.text)
        case.logs[name] = folder / name
