"""Read what files and runs on this machine tell."""

import contextlib
import json
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from kubetrain_components.jobs.local.record import LocalRecord
from kubetrain_pipelines.diagnose.case import ERROR, Case, Outcome
from kubetrain_pipelines.jobs.local_jobs import RECORD, jobs_in, jobs_of_run, read_record
from kubetrain_pipelines.local_run.record import read_run
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import InvalidSetting

STDIN = "-"
NO_TEXT = {
    b"": "it is empty",
    b"\x1f\x8b": "it is compressed, so unpack it with gunzip",
    **dict.fromkeys((b"\xff\xfe", b"\xfe\xff"), "it is UTF-16, so convert it with iconv -f UTF-16"),
}
"""The problems of logs that begin so."""
LOG_NAMES = ("*.log", "*.txt", "*.out", "*.err")


def read_stdin(case: Case, folder: Path) -> None:
    path = folder / "standard-input.log"
    with path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    _add_log(case, "standard input", path)


def read_path(case: Case, path: Path) -> None:
    """
    Raises:
        InvalidSetting: if nothing in the folder can be diagnosed.
    """
    if not path.is_dir():
        _add_log(case, str(path), path)
    elif (path / RECORD).is_file():
        _read_workspace(case, path)
    elif jobs := jobs_in(path):
        _read_jobs(case, jobs)
    else:
        _read_logs(case, path)


def _read_workspace(case: Case, workspace: Path) -> None:
    record = read_run(workspace)
    names, statements = [*case.names, f"run {record.run_id}" if record.run_id else "run"], [*case.statements]
    _read_jobs(case, jobs_of_run(workspace / "jobs", record.run_id))
    if record.status == "stopped":  # its job may look killed
        case.statements = statements
    case.names = names
    case.outcome = Outcome(record.status)
    case.documents[RECORD] = read_record(workspace)
    case.statements += [("the run", f"{ERROR}{record.error}")] if record.error else []
    case.logs |= {path.name: path for path in sorted((workspace / "logs").glob("*.log"))}


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
    for path in found:
        _add_log(case, str(path.relative_to(folder)), path)


def _add_log(case: Case, name: str, path: Path) -> None:
    """Add a log that the user names, and note if it cannot be read as text."""
    case.logs[name] = path
    with contextlib.suppress(OSError), path.open("rb") as log:  # an error is noted when it is read as a whole
        begin = log.read(1024)
        if problem := NO_TEXT.get(begin[:2]) or ("it is not text" if b"\0" in begin else ""):
            case.note_gap(f"{name}: {problem}")
