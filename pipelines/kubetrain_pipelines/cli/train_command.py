"""`kubetrain train --framework mpi|xgboost|paddle|jax -- COMMAND`: run the user's program in a job on a cluster."""

from collections.abc import Iterator

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job_kinds import MPI
from kubetrain_components.jobs.job_logs import important_lines, print_line
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.launch_training.launch import accounting_failures, with_launcher
from kubetrain_components.run.parameters import check_run_id
from kubetrain_components.run.training_time import training_time
from kubetrain_pipelines.cli.train import (
    PIPELINE,
    TrainOptions,
    cluster_backend,
    dataset_on_pvc,
    placement_of,
    print_manifests,
    print_time,
    run_id_of,
)
from kubetrain_pipelines.cli.train_settings import check_settings
from kubetrain_pipelines.definitions.pipeline_parameters import PARAMETERS
from kubetrain_pipelines.requests.parse_parameters import parse_parameters
from kubetrain_trainer.errors import InvalidSetting, check_one_of


def run_command_and_show(options: TrainOptions) -> None:
    command = command_job_of(options)
    if options.dry_run:
        print_manifests(command)
        return
    print(f"run {command.run_id} (follow it again with --run-id)", flush=True)
    for warning in command.placement.warnings():
        print(f"warning: {warning}", flush=True)
    with interrupted_by_sigterm(), cluster_backend(options) as backend:
        job = with_launcher(command, backend).to_job()
        on_line = important_lines(job.lead, print_line) if options.quiet else print_line
        with accounting_failures(job, backend):
            run_job(job, backend, on_line, follow_all=options.follow_all)
        time = training_time(backend.times(job), spent={})
    print("mpirun succeeded" if command.framework == MPI else "the command succeeded in every pod")
    print_time(time)


def command_job_of(options: TrainOptions) -> CommandJob:
    """
    Raises:
        InvalidSetting: if an option or setting is invalid.
    """
    for problem in _problems(options):
        raise InvalidSetting(problem)
    check_one_of(Launcher, "--launcher", options.launcher)
    if options.run_id:
        check_run_id("--run-id", options.run_id)
    declared = [parameter for parameter in PARAMETERS if parameter.name == "placement"]
    check_settings(declared, options.pairs, options.params, cluster=options.cluster)
    dataset = dataset_on_pvc(options)
    return CommandJob(
        framework=options.framework,
        command=options.command,
        pipeline=PIPELINE,
        run_id=run_id_of(options),
        dataset_digest=dataset.digest,
        workers=options.workers,
        processes_per_worker=options.processes_per_worker,
        launcher=Launcher(options.launcher),
        placement=placement_of(options, parse_parameters(declared, options.pairs, options.params)),
        mounts=tuple(mount for mount in dataset.mounts(options.output) if mount.claim),
    )


def _problems(options: TrainOptions) -> Iterator[str]:
    framework = options.framework
    if not options.cluster:
        yield f"--framework {framework} runs only on a cluster: add --cluster"
    if not options.command:
        yield f"--framework {framework} runs your own program: add -- and its command, such as -- python train.py"
    if options.code:
        yield "--code applies only to pytorch and tensorflow: build an image with your program"
    if options.workers < 1:
        yield f"--workers is {options.workers}: use at least 1"
    if options.min_workers or options.max_workers:
        yield "--min-workers and --max-workers apply only to pytorch: leave them out"
    if options.processes_per_worker < 0:
        yield f"--processes-per-worker is {options.processes_per_worker}: use at least 1, or leave it out"
    if options.processes_per_worker > 1 and framework != MPI:
        yield "--processes-per-worker applies only to trainers and mpi: let your program start its processes"
