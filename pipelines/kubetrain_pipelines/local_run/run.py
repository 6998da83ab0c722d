"""A local run: the same steps as on a cluster, under kfp.local, with an embedded S3 server if needed."""

import contextlib
import fcntl
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components.bring_code.pack import PackedCode
from kubetrain_components.interrupts import interrupted_by_sigterm, interrupts_deferred
from kubetrain_components.jobs.local.process_guard import process_guard
from kubetrain_components.run.events import EventLog, EventReader
from kubetrain_components.run.parameters import check_on_one_machine
from kubetrain_components.run.site import WORKSPACE_VARIABLE
from kubetrain_components.run.stages import STAGES
from kubetrain_pipelines.local_run.record import RunRecord, write_end, write_start
from kubetrain_pipelines.local_run.storage import local_storage, uses_example, with_local_uris
from kubetrain_pipelines.requests import bring_code
from kubetrain_pipelines.requests.one_machine import for_one_machine
from kubetrain_pipelines.requests.planned_run import fill_form, find_definition, planned_run
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_pipelines.requests.run_view import RunView
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.code_folder import SAFE_PATH
from kubetrain_trainer.settings.setting_warnings import entry_warnings

POLL_SECONDS = 0.1


def run_local(
    asked: RequestFile,
    workspace: Path,
    view: RunView,
    prepare: Callable[[], Mapping[str, str]] = dict,
    code: PackedCode | None = None,
) -> RunRecord:
    """Run the pipeline, and write run.json and report.html even if it fails.

    Args:
        prepare: Prepares the workspace, when no other run uses it, and returns variables for the run's processes.
        code: What `prepare` unpacks.

    Raises:
        KubetrainError: if the run cannot start. A later failure is in the returned record.
        KeyboardInterrupt: after everything that was started has stopped.
    """
    workspace = workspace.absolute()
    settings = with_local_uris(for_one_machine(asked.request, view.say), asked.pipeline, workspace)
    planned = planned_run(replace(asked, request=settings), "")
    check_on_one_machine(planned.train_config, planned.dataset_uri)
    of_code = bring_code.check_is_here(code, planned.train_config)
    if planned.train_config.entry and uses_example(asked.request, find_definition(asked.pipeline)):
        view.say("no data.uri: your script gets the example dataset of digits, or none with data.uri=''")
    with _locked(workspace):
        for warning in (*of_code, *entry_warnings(planned.train_config)):
            view.say(f"warning: {warning}")
        variables = prepare()
        record = RunRecord(
            pipeline=asked.pipeline,
            workspace=workspace,
            asked=asked.request,
            own=asked.own,
            settings=settings,
            config=planned.train_config,
            started=time.time(),
        )
        write_start(record)
        try:
            with interrupted_by_sigterm(), process_guard() as mark:
                _run_stages(record, {**os.environ, **variables, **mark, SAFE_PATH: "1"}, view)
        except KeyboardInterrupt:
            record.status = "stopped"
            raise
        except KubetrainError as error:
            record.error = str(error)
        except Exception as error:
            record.error = f"unexpected {type(error).__name__}: {error}"
            raise
        finally:
            with interrupts_deferred():  # the earlier run's report is gone
                record.close()
                write_end(record)
    return record


@contextlib.contextmanager
def _locked(workspace: Path) -> Iterator[None]:
    """Lock the workspace for this run."""
    try:
        (workspace / "logs").mkdir(parents=True, exist_ok=True)
        lock = (workspace / ".lock").open("w")
    except OSError as error:
        raise KubetrainError(
            f"cannot write to the workspace {workspace} ({error.strerror}): choose a writable folder with --workspace"
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise KubetrainError(
                f"another run is using the workspace {workspace}: wait, or choose another folder with --workspace"
            ) from None
        yield


def _run_stages(record: RunRecord, environment: dict[str, str], view: RunView) -> None:
    events = EventLog(record.workspace / "events.jsonl")
    events.path.write_text("")
    reader = EventReader(events.path)

    def show_events() -> None:
        for event in reader.new_events():
            record.add(event)
            view.show(event)

    try:
        with local_storage(record, environment, events, show_events) as with_storage:
            exit_code = _run_pipeline(record, with_storage, show_events)
    finally:
        show_events()
    if exit_code == 0 and record.has_finished(STAGES[-1]):
        record.status = "succeeded"
    elif not record.error:
        raise KubetrainError(
            f"the pipeline exited with code {exit_code}, but no stage reported a cause: see {_log(record.workspace)}"
        )


def _run_pipeline(record: RunRecord, environment: Mapping[str, str], show_events: Callable[[], None]) -> int:
    with tempfile.TemporaryDirectory(prefix="kubetrain-", ignore_cleanup_errors=True) as temporary:
        with _log(record.workspace).open("wb") as log:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-m",
                    "kubetrain_pipelines.local_run.pipeline",
                    record.pipeline,
                    str(record.workspace),
                ],
                env={
                    **environment,
                    WORKSPACE_VARIABLE: str(record.workspace),
                    "PATH": f"{Path(sys.executable).parent}{os.pathsep}{environment.get('PATH', '')}",
                    "TMPDIR": temporary,  # kfp.local leaves a folder here for each step
                },
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # so that Ctrl-C stops the steps in order
            )
        assert process.stdin is not None
        # A process that has ended at once says why in its log.
        with contextlib.suppress(BrokenPipeError), process.stdin as arguments:
            arguments.write(json.dumps(_form(record)).encode())
        while process.poll() is None:
            show_events()
            time.sleep(POLL_SECONDS)
        return process.returncode


def _form(record: RunRecord) -> dict[str, Any]:
    declared = find_definition(record.pipeline).parameters
    return fill_form(declared, RequestFile(pipeline=record.pipeline, request=record.settings, own=record.own))


def _log(workspace: Path) -> Path:
    return workspace / "logs" / "pipeline.log"
