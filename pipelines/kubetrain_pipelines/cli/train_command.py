"""`kubetrain train mpi|xgboost|paddle|jax -- COMMAND`: run the user's program in a job on a cluster."""

from collections.abc import Iterator

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job_kinds import MPI
from kubetrain_components.jobs.job_logs import important_lines, print_line
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.launch_training.command_job import CommandJob
from kubetrain_components.launch_training.launch import accounting_failures, with_launcher
from kubetrain_components.run.parameters import RunParameters, check_run_id
from kubetrain_components.run.request import parameters_of
from kubetrain_components.run.training_time import training_time
from kubetrain_pipelines.cli.train import (
    PIPELINE,
    TrainOptions,
    cluster_backend,
    print_manifests,
    print_time,
    run_id_of,
)
from kubetrain_pipelines.cli.train_places import dataset_on_pvc
from kubetrain_pipelines.definitions.images import COMPONENTS
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_trainer.errors import InvalidSetting


def run_command_and_show(options: TrainOptions, asked: RequestFile) -> None:
    command = command_job_of(options, asked)
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


def command_job_of(options: TrainOptions, asked: RequestFile) -> CommandJob:
    """
    Raises:
        InvalidSetting: if an option or setting is invalid.
    """
    of_pods = {"pods": asked.request.get("pods", {}), "data": {"uri": "none"}}
    run = parameters_of(of_pods, pipeline=PIPELINE, components_image=COMPONENTS)
    for problem in _problems(options, asked, run):
        raise InvalidSetting(problem)
    if options.run_id:
        check_run_id("--run-id", options.run_id)
    dataset = dataset_on_pvc(options.data, options.output)
    return CommandJob(
        framework=asked.pipeline,
        command=options.command,
        pipeline=PIPELINE,
        run_id=run_id_of(options),
        dataset_digest=dataset.digest,
        workers=run.workers,
        processes_per_worker=run.processes_per_worker,
        launcher=Launcher(run.launcher),
        placement=run.placement,
        mounts=tuple(mount for mount in dataset.mounts(options.output) if mount.claim),
    )


def _problems(options: TrainOptions, asked: RequestFile, run: RunParameters) -> Iterator[str]:
    framework = asked.pipeline
    if not options.cluster:
        yield f"{framework} runs only on a cluster: add --cluster"
    if not options.command:
        yield f"{framework} runs your own program: add -- and its command, such as -- python train.py"
    if options.code:
        yield "--code applies only to train-pytorch and train-tensorflow: build an image with your program"
    if others := sorted({*asked.request} - {"pods"}):
        yield f"{framework} has settings of pods alone, but {others[0]} is set: leave it out"
    if run.min_workers or run.max_workers:
        yield "pods.min_workers and pods.max_workers apply only to train-pytorch: leave them out"
    if run.processes_per_worker > 1 and framework != MPI:
        yield "pods.processes applies only to train-pytorch and mpi: let your program start its processes"
