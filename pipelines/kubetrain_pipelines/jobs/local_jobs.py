"""Find the jobs of runs on this machine, in their folders."""

from pathlib import Path
from typing import Any

from kubetrain_components.jobs.annotations import RUN_ID, STAGE
from kubetrain_components.jobs.job_state import JobState
from kubetrain_components.jobs.local.record import LocalRecord
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import InvalidSetting

RECORD = "run.json"
"""The file of a workspace that describes its run."""
RECORD_SCHEMA = "kubetrain/run/v1"
STATUSES = ("running", "succeeded", "failed", "stopped")
JOB, TRAIN_JOBS = "job.json", ".jobs"


class JobGone(InvalidSetting):
    """A run's output has no job any more: the job of a training that is stopped is deleted."""


def read_record(workspace: Path) -> dict[str, Any]:
    """
    Raises:
        InvalidSetting: if the file is not the record of a run.
    """
    try:
        record = read_json(workspace / RECORD)
    except ValueError:
        record = None
    if not _is_record(record):
        raise InvalidSetting(f"{workspace / RECORD} was not written by `kubetrain run`: name a workspace or log files")
    found: dict[str, Any] = record
    return found


def _is_record(record: Any) -> bool:
    match record:
        case {"schema": schema, "run_id": str(), "status": str(status), "error": str()}:
            owner = record.get("owner") or {"pid": 0, "started": 0}
            is_owned = all(isinstance(owner.get(name), int | float) for name in ("pid", "started"))
            return schema == RECORD_SCHEMA and status in STATUSES and is_owned
    return False


def owners_in(path: Path) -> list[dict[str, float]]:
    """Return the processes of the run of a workspace, or of the jobs of an output folder."""
    records = [read_record(path)] if (path / RECORD).is_file() else [read_json(job / JOB) for job in jobs_in(path)]
    return [record["owner"] for record in records]


def jobs_in(path: Path) -> list[Path]:
    """Return the folder of a job itself, the newest job under an output root, or the jobs of a run's output.

    Returns:
        No folders if the path is none of these.

    Raises:
        JobGone: if the jobs of the run's output are gone.
    """
    if (path / JOB).is_file():
        return [path]
    if (path / TRAIN_JOBS).is_dir():
        return [folder for folder, _ in _by_age(path / TRAIN_JOBS)[-1:]]
    if (path.parent / TRAIN_JOBS).is_dir():
        return _jobs_left(path.parent / TRAIN_JOBS, path.resolve().name)
    return []


def jobs_of_run(folder: Path, run_id: str) -> list[Path]:
    """Return the newest job of each stage of a run."""
    of_run = [(path, state) for path, state in _by_age(folder) if state.annotations.get(RUN_ID) == run_id]
    return [*{state.annotations.get(STAGE): path for path, state in of_run}.values()]


def _jobs_left(folder: Path, run_id: str) -> list[Path]:
    if not (jobs := jobs_of_run(folder, run_id)):
        raise JobGone(f"{folder} no longer has the job of run {run_id}: `kubetrain diagnose` also reads log files")
    return jobs


def _by_age(folder: Path) -> list[tuple[Path, JobState]]:
    """Return the jobs, the one whose state was written last at the end, without those that are being deleted."""
    found = [(path.parent, LocalRecord(path.parent).state()) for path in folder.glob(f"*/{JOB}")]
    return sorted(((path, state) for path, state in found if state), key=lambda each: _written(each[0]))


def _written(folder: Path) -> float:
    try:
        return (folder / "state.json").stat().st_mtime
    except OSError:
        return 0.0
