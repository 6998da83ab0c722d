"""Jobs that run the user's own program, for `kubetrain train`: XGBoostJob, PaddleJob and JAXJob."""

import re

from kubetrain_components.jobs.job_kinds import MPI, JobKind
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.run.request import Request, merged, parameters_of
from kubetrain_components.secret_values import has_secret
from kubetrain_pipelines.translate.commands import NOT_SHOWN, command_of, in_folder, name_command, take_folder
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.kinds import take_replicas, take_restart_policy, take_run_policy

PLACEHOLDER = "COMMAND"
"""What the user has to fill in if the command is not known, or may not be shown."""
MPIRUN = re.compile(r"(.*/)?mpi(run|exec)")
"""The program of arguments that need no command: the image's, if it has one, only prepares the pod."""
ELASTIC = "kubetrain train has pods.min_workers only for train-pytorch"
OF_IMAGE = "the command is in the image, but kubetrain train needs all of it: write it before these arguments"


def take_command_job(draft: Draft, job: Fields, kind: JobKind) -> None:
    """Take a job all of whose pods run the same command."""
    draft.framework, field = kind.traits.framework, kind.traits.replica_specs
    main = take_replicas(draft, job, field, ("Master", "Worker"), kind.traits.container)
    take_command(draft, main)
    take_run_policy(draft, job.at("spec.runPolicy"))
    take_restart_policy(draft, job.at(f"spec.{field}"), "OnFailure" if kind is JobKind.PADDLE_JOB else "Never")
    if elastic := job.take("spec.elasticPolicy", dict):
        draft.unmapped.append(Unmapped.of("spec.elasticPolicy", elastic, ELASTIC))


def take_command(draft: Draft, container: Fields) -> None:
    """Take a command and its folder, or name it if it may not be shown or is not complete."""
    words, folder = command_of(container), take_folder(container)
    is_whole = container.get("command", list) or MPIRUN.fullmatch((words or [""])[0])
    reason = OF_IMAGE if not is_whole else NOT_SHOWN if has_secret(words) else ""
    if reason:
        name_command(draft, reason, container)
    container.drop("command", "args")
    draft.command = in_folder(folder, [PLACEHOLDER] if reason else words)


def planned_request(draft: Draft) -> Request:
    """Return the settings of such a job.

    Raises:
        InvalidSetting: if `kubetrain train` would refuse it.
    """
    # Kueue manages the MPIJobs of MPI Operator 2, but not those of the Training Operator, which auto would take.
    if draft.framework == MPI and draft.settings.get("scheduler") == "kueue":
        draft.set("launcher", Launcher.TRAINER.value)
    request = draft.request
    run = parameters_of(merged(request, {"data": {"uri": "none"}}))
    job = CommandJob(
        framework=draft.framework,
        command=tuple(draft.command),
        pipeline="train",
        run_id="RUN-ID",
        workers=run.workers,
        processes_per_worker=run.processes_per_worker,
        launcher=Launcher(run.launcher),
        placement=run.placement,
    )
    manifests_of(job.to_job())
    if draft.framework == MPI:
        draft.set("processes_per_worker", job.processes_per_worker)
    return draft.request
