"""A training by a script or command of your own: what it finds, and how it runs."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import json
import logging
import os
import re
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from kubetrain_trainer.data.dataset_files import check_dataset
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.failures import annotating_errors, own_line
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, intact_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.own_code import session
from kubetrain_trainer.own_code.check_script import check_program, existing_script
from kubetrain_trainer.own_code.own_files import working_folder
from kubetrain_trainer.own_code.own_output import accept_model, forget_model
from kubetrain_trainer.own_code.requirements import use_requirements
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.processes.process_role import own_role
from kubetrain_trainer.reporting.mlflow_log import log_to_mlflow
from kubetrain_trainer.settings.entry import Entry, parse_entry
from kubetrain_trainer.settings.setting_warnings import entry_warnings
from kubetrain_trainer.stop_signal import EXIT_CODE, StopSignal
from kubetrain_trainer.termination import end_without_teardown, report_failure, report_result

EXIT_CODE_OF_SIGNALS = 128
PLACE = r"\$(?P<brace>\{)?(?P<place>KUBETRAIN_(?:DATA|OUTPUT|RUN_ID|RESUME_FROM|MODEL))\b(?(brace)\})"
"""A variable of the places below, as a shell writes it: $KUBETRAIN_DATA or ${KUBETRAIN_DATA}."""
REFERENCE = re.compile(rf"(?P<escaped>\$\$(?=\$*\())|\$\((?P<name>[A-Za-z_.-][\w.-]*)\)|{PLACE}")
"""These variables, and what Kubernetes replaces in commands: any variable as $(NAME), and $$( by $(.

A $$ elsewhere is a shell's."""


def train_with_own_code(arguments: Arguments, framework: str) -> None:
    """Run the entry, and accept its end as success only with a model."""
    output, role, succeeded = arguments.output, own_role(), threading.Event()
    end_without_teardown(succeeded)
    entry = own_entry(arguments)
    if role.local_rank == 0:
        check_dataset(arguments)
    if role.is_rank_0:
        for warning in entry_warnings(arguments.config):
            print(warning, flush=True)
        output.begin(framework, arguments.config, arguments.dataset_digest)
    if not output.is_finished():
        if arguments.config.outputs:
            os.chdir(working_folder(output, role, arguments.config.outputs))
        folder = Path.cwd()  # which the script may leave
        forget_model(output, role)
        os.environ.update(environment(arguments))
        use_requirements(arguments.config.requirements, output, role)
        with _ending_mlflow_run(arguments) if role.is_rank_0 and entry.command else contextlib.nullcontext():
            run_entry(entry)
        with StopSignal() as stop:  # a pod that has to end now may complete what takes seconds
            accept_model(output, role, stop, folder)
    if role.is_rank_0:
        report_result(output.read_result() or {})
    succeeded.set()


@contextlib.contextmanager
def _ending_mlflow_run(arguments: Arguments) -> Iterator[None]:
    """End the run that the processes of a command log to: they cannot know how the command ends, or are killed.

    A start that logs nothing before it fails, or is ended, leaves the run as the start before it did.
    """
    metrics = arguments.output.metrics
    before = _version(metrics)
    try:
        yield
        before = None  # a success ends the run, whichever start has logged
    finally:
        if _version(metrics) != before:
            log_to_mlflow(arguments.config, arguments.output)


def _version(path: Path) -> tuple[int, int] | None:
    """Return what is different once a process has replaced the file or appended to it; None for a missing file."""
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_ino, status.st_mtime_ns
    return None


def own_entry(arguments: Arguments) -> Entry:
    entry = parse_entry(arguments.config.entry)
    if entry is None:
        raise InvalidSetting("train.entry is empty: name a script or a command")
    return entry


def environment(arguments: Arguments) -> dict[str, str]:
    """Return the variables by which a script learns what it needs."""
    saved = _newest_checkpoint(arguments.output, arguments.config.resume_from)
    return {
        "KUBETRAIN_DATA": str(arguments.data_dir) if arguments.data_dir != Path() else "",
        "KUBETRAIN_OUTPUT": str(arguments.output.path),
        "KUBETRAIN_RUN_ID": arguments.output.path.name,
        "KUBETRAIN_RESUME_FROM": str(saved.path) if saved else "",
        "KUBETRAIN_CONFIG": json.dumps(arguments.config.to_dict()),
    }


def _newest_checkpoint(output: TrainingOutput, resume_from: str) -> Checkpoint | None:
    """Return this run's newest checkpoint, or else that of the run named by resume_from.

    Raises:
        InvalidSetting: if that run has none.
    """
    own = next(intact_checkpoints(output.checkpoints), None)
    if own or not resume_from:
        return own
    others = TrainingOutput(output.path.parent / resume_from).checkpoints
    if (found := next(intact_checkpoints(others), None)) is None:
        raise InvalidSetting(f"train.resume_from: there is no complete checkpoint in {others}: name a run that has one")
    return found


def run_entry(entry: Entry) -> None:
    """Run the script in this process, or the command in another one. Exit if it ends with another exit code than 0."""
    if entry.script:
        _run_script(entry)
    else:
        _run_command(entry)


def with_variables(arguments: Sequence[str], variables: Mapping[str, str] = os.environ) -> list[str]:
    """Fill in the variables that the arguments name, because no shell does it.

    Kubernetes does not do it either: the value of a secret would be recorded with the settings.
    """

    def value(found: re.Match[str]) -> str:
        return "$" if found["escaped"] else variables.get(found["name"] or found["place"], found[0])

    return [REFERENCE.sub(value, argument) for argument in arguments]


def _run_script(entry: Entry) -> None:
    path = existing_script(entry.script)
    sys.argv = [entry.script, *with_variables(entry.args)]
    sys.path.insert(0, str(path.parent))
    logging.getLogger().handlers.clear()  # otherwise logging.basicConfig() of the script would do nothing
    faulthandler.enable(all_threads=False)  # so that the log has the line if a signal ends the process
    try:
        with annotating_errors(session.where):
            runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            _report_exit(ended)
            raise
    except Exception as error:
        for failure in getattr(error, "worker_failures", {}).values():
            raise getattr(failure, "_base_exc", failure) from error  # Ray Train's own message begins with tracebacks
        raise


def _report_exit(ended: SystemExit) -> None:
    code = ended.code
    if not isinstance(code, int) or code < EXIT_CODE_OF_SIGNALS:  # otherwise it ends as it was asked to
        refused = _refused_arguments(ended)
        said = refused or (f"sys.exit({code})" if isinstance(code, int) else code)
        report_failure(f"{said}{own_line(ended)}", curable=not refused)


def _refused_arguments(ended: SystemExit) -> str:
    """Return the sentence with which argparse, or a parser based on it, refused the arguments."""
    for frame, _ in traceback.walk_tb(ended.__traceback__):
        if frame.f_code.co_name == "error" and isinstance(frame.f_locals.get("self"), argparse.ArgumentParser):
            return str(frame.f_locals.get("message") or "").strip()
    return ""


def _run_command(entry: Entry) -> None:
    check_program(entry.command[0])
    if code := run_program(with_variables(entry.command)):
        sys.exit(code if code > 0 else 128 - code)


def run_program(command: Sequence[str], **options: Any) -> int:
    """Run a program in another process, with these options of Popen, and return its exit code. SIGTERM ends both."""
    process, is_stopped = subprocess.Popen(command, **options), False

    def stop(*_: object) -> None:
        nonlocal is_stopped
        is_stopped = True
        process.terminate()

    signal.signal(signal.SIGTERM, stop)
    code = process.wait()
    if is_stopped:
        sys.exit(EXIT_CODE)  # also with exit code 0: the command ended early
    return code
