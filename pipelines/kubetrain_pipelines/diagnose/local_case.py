"""Read what files and runs on this machine tell."""

import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from kubetrain_components.jobs.job_state import JobState
from kubetrain_components.jobs.local.record import LocalRecord
from kubetrain_pipelines.diagnose.case import ERROR, RUN_ID, STAGE, Case, Outcome
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import InvalidSetting

STDIN = "-"
RECORD, JOB, TRAIN_JOBS = "run.json", "job.json", ".jobs"
LOG_NAMES = ("*.log", "*.txt", "*.out", "*.err")


def read_stdin(case: Case, folder: Path) -> None:
    path = folder / "standard-input.log"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    case.logs["standard input"] = path


def read_path(case: Case, path: Path) -> None:
    """
    Raises:
        InvalidSetting: if nothing in the folder can be diagnosed.
    """
    if not path.is_dir():
        case.logs[str(path)] = path
    elif (path / RECORD).is_file():
        _read_workspace(case, path)
    elif (path / JOB).is_file():
        _read_jobs(case, [path])
    elif (path / TRAIN_JOBS).is_dir():
        _read_jobs(case, _newest(path / TRAIN_JOBS))
    elif (path.parent / TRAIN_JOBS).is_dir():
        _read_jobs(case, _jobs_left(path.parent / TRAIN_JOBS, path.resolve().name))
    else:
        _read_logs(case, path)


def _read_workspace(case: Case, workspace: Path) -> None:
    record = read_json(workspace / RECORD)
    names = [*case.names, f"run {record['run_id']}"]
    _read_jobs(case, _jobs_of(workspace / "jobs", record["run_id"]))
    case.names = names
    case.outcome = {"succeeded": Outcome.SUCCEEDED, "running": Outcome.RUNNING}.get(record["status"], Outcome.FAILED)
    case.documents[RECORD] = record
    case.statements += [("the run", f"{ERROR}{record['error']}")] if record["error"] else []
    case.logs |= {path.name: path for path in sorted((workspace / "logs").glob("*.log"))}


def _jobs_of(folder: Path, run_id: str) -> list[Path]:
    """Return the newest job of each stage of a run."""
    of_run = [(path, state) for path, state in _by_age(folder) if state.annotations.get(RUN_ID) == run_id]
    return [*{state.annotations.get(STAGE): path for path, state in of_run}.values()]


def _jobs_left(folder: Path, run_id: str) -> list[Path]:
    if not (jobs := _jobs_of(folder, run_id)):
        raise InvalidSetting(f"{folder} no longer has the job of run {run_id}: pass log files")
    return jobs


def _newest(folder: Path) -> list[Path]:
    return [path for path, _ in _by_age(folder)[-1:]]


def _by_age(folder: Path) -> list[tuple[Path, JobState]]:
    """Return the jobs, the one whose state was written last at the end, without those that are being deleted."""
    found = [(path.parent, LocalRecord(path.parent).state()) for path in folder.glob(f"*/{JOB}")]
    return sorted(((path, state) for path, state in found if state), key=lambda each: _written(each[0]))


def _written(folder: Path) -> float:
    try:
        return (folder / "state.json").stat().st_mtime
    except OSError:
        return 0.0


def _read_jobs(case: Case, folders: Iterable[Path]) -> None:
    for folder in folders:
        record = LocalRecord(folder)
        if state := record.state():
            case.add_job(folder.name, state)
            if case.outcome is Outcome.RUNNING and not record.is_alive():
                case.outcome = Outcome.FAILED
                case.statements.append(("the job", "error: its launcher was killed, and its pods ended with it"))
        case.documents |= {f"{folder.name}/{path.name}": _json(path) for path in sorted(folder.glob("*.json"))}
        case.logs |= {path.name: path for path in sorted(folder.glob("*.log"))}


def _json(path: Path) -> object:
    try:
        return read_json(path)
    except (OSError, json.JSONDecodeError) as error:
        return f"unreadable: {error}"


def _read_logs(case: Case, folder: Path) -> None:
    found = sorted(path for name in LOG_NAMES for path in folder.rglob(name))
    if not found:
        raise InvalidSetting(
            f"{folder} has no logs ({', '.join(LOG_NAMES)}), and is neither a workspace nor the output of a training: "
            "pass log files"
        )
    case.logs |= {str(path.relative_to(folder)): path for path in found}
