"""Jobs that run the user's own program, for `kubetrain train`: XGBoostJob, PaddleJob and JAXJob."""

import re
from typing import Any

from kubetrain_components.jobs.job_kinds import MPI, JobKind
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import manifests_of
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.secret_values import has_secret
from kubetrain_pipelines.translate.commands import NOT_SHOWN, command_of, in_folder, name_command, take_folder
from kubetrain_pipelines.translate.draft import Draft, Unmapped
from kubetrain_pipelines.translate.fields import Fields
from kubetrain_pipelines.translate.kinds import take_replicas, take_restart_policy, take_run_policy

PLACEHOLDER = "COMMAND"
"""What the user has to fill in if the command is not known, or may not be shown."""
MPIRUN = re.compile(r"(.*/)?mpi(run|exec)")
"""The program of arguments that need no command: the image's, if it has one, only prepares the pod."""
ELASTIC = "kubetrain train has min_workers only for pytorch"
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


def placement_in(draft: Draft) -> dict[str, Any]:
    return {name: draft.settings[name] for name in Placement.names() if name in draft.settings}


def train_options(draft: Draft, namespace: str) -> tuple[str, ...]:
    """Return the options of `kubetrain train` that a parameter file does not hold.

    Raises:
        InvalidSetting: if it would refuse the job.
    """
    job = _planned(draft)
    manifests_of(job.to_job())
    number = str(job.processes_per_worker)
    return (
        *("--framework", job.framework, "--workers", str(job.workers)),
        *(("--processes-per-worker", number) if job.framework == MPI else ()),
        *(("--launcher", job.launcher) if job.launcher is not Launcher.AUTO else ()),
        *(("--namespace", namespace) if namespace else ()),
    )


def _planned(draft: Draft) -> CommandJob:
    settings = draft.settings
    # Kueue manages the MPIJobs of MPI Operator 2, but not those of the Training Operator, which auto would take.
    needs_trainer = draft.framework == MPI and settings.get("scheduler") == "kueue"
    return CommandJob(
        framework=draft.framework,
        command=tuple(draft.command),
        pipeline="train",
        run_id="RUN-ID",
        workers=settings["workers"],
        processes_per_worker=settings.get("processes_per_worker", 0),
        launcher=Launcher.TRAINER if needs_trainer else Launcher.AUTO,
        placement=Placement.from_dict(placement_in(draft)),
    )
