"""The job that tries your own task, script or command in the training image, before the run moves any data.

Only what this job has proven ends the run. If the job cannot start or end, the training finds out.
"""

from typing import Any

from kubetrain_components.jobs.backend import JobBackend
from kubetrain_components.jobs.budgets import Budgets
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import OWN_PROGRAM, Job, Replica
from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_logs import OnLine
from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.jobs.quantity import amount
from kubetrain_components.jobs.troubles import TroubleKind
from kubetrain_components.jobs.verdict import lead_result
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.transfer_container import CACHE_MOUNT
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.own_code.check_imports import ERROR, WARNING
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import is_own_code

STAGE = "check_imports"
MEMORY = "2Gi"
CPU = "500m"
BUDGETS = Budgets(
    queue_seconds=60,
    start_seconds=600,  # to pull the image
    run_seconds=180,
    troubles={TroubleKind.UNSCHEDULABLE: 30, TroubleKind.QUOTA: 5, TroubleKind.REFUSED: 5},
)


def check_imports(parameters: RunParameters, backend: JobBackend, on_line: OnLine, remedy: str = "") -> None:
    """Try the code in a job of its own; `remedy` ends the error, such as "; set check_imports=false".

    Raises:
        InvalidSetting: if the training image has no such module, function, script or program.
    """
    for job in import_jobs(parameters):
        try:
            state = run_job(job, backend, on_line, BUDGETS)
        except KubetrainError as error:
            on_line(LogLine(STAGE, f"{WARNING}{error}; the training will find out"))
            continue
        seen = str(lead_result(job, state).get("seen", {}).get("task", ""))
        if seen.startswith(ERROR):
            backend.delete(state.handle)  # so that a retry of the step tries again
            raise InvalidSetting(f"{seen.removeprefix(ERROR)}{remedy}")


def import_jobs(parameters: RunParameters) -> list[Job]:
    """Return the job, if the run trains with code of your own."""
    config, placement = parameters.train_config, parameters.placement
    if not parameters.framework or not is_own_code(config) or not placement.check_imports:
        return []
    identity = JobIdentity(pipeline=parameters.pipeline, stage=STAGE, run_id=parameters.run_id)
    return [import_job(identity, parameters.framework, config, placement)]


def import_job(identity: JobIdentity, framework: str, config: TrainConfig, training: Placement) -> Job:
    names = ("entry", "requirements", "outputs", "publishes") if config.entry else ("model",)
    tried = TrainConfig.from_dict({name: getattr(config, name) for name in names})
    command = ("python", "-m", "kubetrain_trainer.own_code.check_imports", "--framework", framework, *tried.to_flags())
    return Job(
        identity=identity,
        kind=JobKind.BATCH_JOB,
        replicas=(Replica(role="Import", count=1, command=command, env=OWN_PROGRAM),),
        backoff_limit=3,
        placement=_placement(training),
    )


def _placement(training: Placement) -> Placement:
    """Request little, but limit memory as for the training. Volumes and init containers may provide the code."""
    limit = str(training.limits.get("memory", training.memory))
    memory = min(MEMORY, training.memory or MEMORY, key=amount)
    keep = tuple(name for name in training.init_containers if name != CACHE_MOUNT["name"])
    small = training.small(CPU, keep, memory=memory, network="", together="")
    limits = {"memory": limit} if limit else {}
    return small.patched(pod_patch({"tolerations": _gpu_tolerations(training)}, {"resources": {"limits": limits}}))


def _gpu_tolerations(training: Placement) -> list[Any]:
    """Return the toleration that some clusters add only to pods with GPUs."""
    return [{"key": training.gpu_resource, "operator": "Exists", "effect": "NoSchedule"}] if training.gpus else []
