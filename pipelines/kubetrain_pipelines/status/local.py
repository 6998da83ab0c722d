"""Read the snapshots of runs and jobs on this machine from their folders."""

import os
from collections.abc import Iterable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from kubetrain_components.jobs.job_state import JobState, Phase
from kubetrain_components.jobs.local.record import LocalRecord, ended
from kubetrain_components.run.stages import STAGES
from kubetrain_pipelines.jobs.local_jobs import RECORD, JobGone, jobs_in, jobs_of_run
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import RunState, StageState
from kubetrain_pipelines.local_run.record import KILLED, StageRecord, read_run
from kubetrain_pipelines.status.snapshot import JobSnapshot, Progress, Snapshot, lead_of, newest_progress
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.checkpoint_layout import resumable_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.some_of import some_of

STATES = {
    "running": RunState.RUNNING,
    "finished": RunState.SUCCEEDED,
    "succeeded": RunState.SUCCEEDED,
    "failed": RunState.FAILED,
    "stopped": RunState.CANCELED,
}
"""The states of runs and stages, by their names in files."""
TITLES = {stage.name: stage.title for stage in STAGES}
LAST_BYTES = 100_000


def read_local(path: Path) -> Snapshot:
    """Return the run of a workspace, or the jobs of a folder that `kubetrain train` has written.

    Raises:
        InvalidSetting: if the path is neither, or its jobs are gone.
        KubetrainError: if it is the output of a run without a job; the error says what the run has written.
    """
    if (path / RECORD).is_file():
        return _read_workspace(path)
    try:
        folders = jobs_in(path)
    except JobGone:
        if TrainingOutput(path).has_begun():
            raise KubetrainError(_output_without_job(TrainingOutput(path.resolve()))) from None
        raise
    if not (jobs := [*_jobs(folders)]):
        raise InvalidSetting(_without_job(path))
    return Snapshot(jobs=jobs)


def _without_job(path: Path) -> str:
    """Return what to do about a folder without a run or job. That of a training that was stopped is deleted."""
    if not (stopped := sorted(item.parent.name for item in path.glob("*/checkpoints"))):
        return f"{path} has no run and no job: name a workspace or the output of a training"
    return (
        f"{path} has no job any more, but checkpoints of {some_of(stopped)}: `kubetrain train` with the same --output "
        "and --run-id resumes a training"
    )


def _output_without_job(output: TrainingOutput) -> str:
    """Return what a run has written whose job is gone, and how to continue it."""
    run_id = output.path.name
    if output.is_finished():
        return f"run {run_id} has finished, and its job was deleted: its model is in {output.export}"
    saved = resumable_checkpoints(output.checkpoints)
    kept = f"its newest checkpoint is of step {saved[-1].step}" if saved else "it has no checkpoint"
    continues = "resumes it there" if saved else "starts it again"
    return (
        f"run {run_id} was stopped, and {kept}: `kubetrain train` with the same settings, --output and "
        f"--run-id {run_id} {continues}"
    )


def _read_workspace(workspace: Path) -> Snapshot:
    record = read_run(workspace)
    state = STATES[record.status]
    run = Run(
        id=record.run_id or "-",  # its first step chooses it
        name=record.pipeline,
        state=state,
        created=_time(record.started),
        ended=_time(record.finished) if record.finished else None,
        stages=tuple(_stage(stage, state) for stage in record.stages),
    )
    jobs = [] if state.is_final else _jobs(jobs_of_run(workspace / "jobs", record.run_id))
    causes = [record.error] if record.error else []
    return Snapshot(run=run, causes=causes, jobs=[job for job in jobs if not job.has_ended])


def _stage(stage: StageRecord, run: RunState) -> StageState:
    state = STATES[stage.status]
    return StageState(
        place=stage.name,
        task=stage.name,
        title=TITLES.get(stage.name, stage.name.replace("_", " ").capitalize()),
        state=run if run.is_final and not state.is_final else state,
        started=_time(stage.started),
        ended=_time(stage.started + stage.seconds) if state.is_final else None,
    )


def _time(seconds: float) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def _jobs(folders: Iterable[Path]) -> Iterator[JobSnapshot]:
    for folder in folders:
        record = LocalRecord(folder)
        if state := record.state():
            if not record.is_alive():
                state = replace(state, phase=Phase.FAILED, message=KILLED, pods=ended(state.pods))
            nodes = {pod.name: "localhost" for pod in state.pods}
            yield JobSnapshot(name=folder.name, state=state, nodes=nodes, progress=_progress(folder, state))


def _progress(folder: Path, state: JobState) -> Progress | None:
    lead = lead_of(state)
    try:
        with (folder / f"{lead.name if lead else ''}.log").open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            log.seek(max(end - LAST_BYTES, 0))
            lines = log.read().decode(errors="replace").splitlines()
            return newest_progress((line, os.fstat(log.fileno()).st_mtime) for line in reversed(lines))
    except OSError:  # the job has no pods yet, or is being deleted
        return None
