"""The copy of a training's settings and metrics in MLflow, which a thread brings up to date.

It reads metrics.jsonl and asks the server what it already has. So nothing waits for MLflow, nothing is lost while it
does not answer, and the copy of a training that was killed continues where it ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from kubetrain_trainer.durable_files import read_json, write_json
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import parse_rows
from kubetrain_trainer.reporting.mlflow_client import (
    LoggedRun,
    MlflowClient,
    Refused,
    Unavailable,
    address_problem,
    now_ms,
)
from kubetrain_trainer.settings.base import as_text
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import EXIT_CODE
from kubetrain_trainer.termination import call_before_end

BLOCK_BYTES = 1 << 22
"""The most of metrics.jsonl that is read at once."""
RECORD = "mlflow.json"
"""The file in the output with the run that was created for it."""
SEND_SECONDS = 2.0
MAX_PAUSE_SECONDS = 60.0
END_SECONDS = 10.0
"""How long the end of a training waits for the last rows to be sent."""
MAX_VALUE_LENGTH = 500
"""The limit of older servers; newer ones accept more."""
FOREIGN = re.compile(r"[^\w\-. /]", re.ASCII)
"""Characters that MLflow does not accept in the name of a metric or setting."""
MAX_NAME_LENGTH = 250
NOT_LOGGED = ("entry", "code", "model_args")
"""Settings that may contain secrets, or say nothing about what is learned."""
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Target:
    address: str
    run_id: str = ""
    """The run of a step, which Kubeflow Pipelines created and ends; empty: create one."""


def log_to_mlflow(config: TrainConfig, output: TrainingOutput, environment: Mapping[str, str] = os.environ) -> None:
    """Keep a copy of the training's settings and metrics in MLflow until this process ends, if the environment names a
    server. MLFLOW_RUN_ID is the run that Kubeflow Pipelines has created for the step."""
    target = Target(environment.get("MLFLOW_TRACKING_URI", ""), environment.get("MLFLOW_RUN_ID", ""))
    if not target.address:
        return
    if problem := address_problem(target.address):
        log.warning("the training is not logged to MLflow: MLFLOW_TRACKING_URI %s", problem)
        return
    call_before_end(MlflowLog(target, config, output, environment).end)


class MlflowLog:
    def __init__(
        self, target: Target, config: TrainConfig, output: TrainingOutput, environment: Mapping[str, str]
    ) -> None:
        self._target = target
        self._config = config
        self._experiment = environment.get("MLFLOW_EXPERIMENT_NAME") or "kubetrain"
        self._output = output
        self._client = MlflowClient(target.address, environment)
        self._run: LoggedRun | None = None
        self._read_bytes = 0
        self._exit_code = 0
        self._has_warned = self._is_ending = self._is_complete = False
        self._must_end = threading.Event()
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def end(self, exit_code: int) -> None:
        """Send the last rows and the status, if that takes seconds at most."""
        if self._is_ending or not self._thread.is_alive():  # it has given up, or belongs to the process that forked
            return
        self._is_ending, self._exit_code = True, exit_code
        self._must_end.set()
        self._thread.join(END_SECONDS)
        if not self._is_complete:
            log.warning("the end of the training is missing in MLflow at %s", self._client.address)

    def _work(self) -> None:
        """Send new rows every few seconds, and try again less and less often while the server does not answer."""
        pause = 0.0
        while True:
            is_last = self._must_end.wait(pause)
            try:
                self._send()
                if is_last:
                    self._end_run()
                    self._is_complete = True
                pause = SEND_SECONDS
            except Refused as refusal:
                self._warn(str(refusal))
                return
            except (LookupError, TypeError, ValueError, AttributeError) as error:
                self._warn(f"the answer is not MLflow's ({error!r})")
                return
            except (Unavailable, OSError) as error:
                self._run = None  # it may have taken what it did not confirm
                pause = min(MAX_PAUSE_SECONDS, max(SEND_SECONDS, 2 * pause))
                self._warn(f"{error}; kubetrain tries again")
            if is_last:
                return

    def _warn(self, problem: str) -> None:
        """Warn once: the training continues either way, and the log is for the training."""
        if not self._has_warned:
            log.warning("the training is not logged to MLflow at %s: %s", self._client.address, problem)
        self._has_warned = True

    def _send(self) -> None:
        if self._run is None and not self._output.metrics.exists() and self._config.entry:
            return  # a script that does not log by the session may use MLflow itself
        if self._run is None:
            self._run, self._read_bytes = self._open_run(), 0
        end, rows = _read_rows(self._output.metrics, self._read_bytes)
        while rows:
            if metrics := list(_metrics_of(rows, self._run.steps)):
                self._client.log_metrics(self._run.id, metrics)
            self._read_bytes = end
            end, rows = _read_rows(self._output.metrics, end)

    def _open_run(self) -> LoggedRun:
        """Return the run with what the server has of it, after logging the settings that are missing."""
        run = self._client.read_run(self._target.run_id or self._own_run())
        self._client.log_parameters(run.id, list(_parameters(self._config, run)))
        print(f"MLflow: {self._client.address}/#/experiments/{run.experiment}/runs/{run.id}", flush=True)
        return run

    def _own_run(self) -> str:
        """Return the run of this output, which is created at the beginning of the training."""
        recorded = self._recorded()
        if (run_id := recorded.get("run_id")) and self._has_resumed(run_id):
            return run_id
        mark = recorded.get("mark") or uuid4().hex
        self._write_record(mark=mark)
        experiment = self._client.experiment(self._experiment)
        # The server may have created the run although its answer, or this process, was lost.
        run_id = self._client.find_run(experiment, mark) or self._client.create_run(
            experiment, self._output.path.name, mark
        )
        self._write_record(run_id=run_id)
        return run_id

    def _has_resumed(self, run_id: str) -> bool:
        """Resume the run; return False if it was deleted. Another run gets all that it had, from metrics.jsonl."""
        try:
            self._client.resume_run(run_id)
        except Refused as refusal:
            if not refusal.is_of_request:
                raise
            return False
        return True

    @property
    def _record(self) -> Path:
        return self._output.path / RECORD

    def _recorded(self) -> dict[str, str]:
        """Return the run_id of the run that an earlier start of this training created on the same server, or the mark
        of the one that it was about to create."""
        with contextlib.suppress(FileNotFoundError, ValueError):
            recorded = read_json(self._record)
            return recorded if recorded["address"] == self._client.address else {}
        return {}

    def _write_record(self, **values: str) -> None:
        write_json(self._record, {"address": self._client.address, **values})

    def _end_run(self) -> None:
        if self._run and not self._target.run_id:
            self._client.end_run(self._run.id, self._status())

    def _status(self) -> str:
        if self._output.is_finished():
            return "FINISHED"
        return "KILLED" if self._exit_code == EXIT_CODE else "FAILED"


def _read_rows(path: Path, start: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the next complete rows after this many bytes, and the number of bytes up to their end."""
    with path.open("rb") as file:
        file.seek(start)
        complete, newline, _ = file.read(BLOCK_BYTES).rpartition(b"\n")
    return start + len(complete + newline), [*parse_rows(complete.splitlines())]


def _metrics_of(rows: list[dict[str, Any]], logged: Mapping[str, int]) -> Iterator[dict[str, Any]]:
    """Yield the numbers of the rows, without those that the server has. None stands for one that is not finite."""
    timestamp = now_ms()
    for row in rows:
        for name, value in row.items():
            key = accepted_name(name)
            if name != "step" and isinstance(value, (int, float)) and row["step"] > logged.get(key, -1):
                yield {"key": key, "value": value, "timestamp": timestamp, "step": row["step"]}


def _parameters(config: TrainConfig, run: LoggedRun) -> Iterator[dict[str, str]]:
    """Yield the settings that the run does not have. MLflow refuses to change one, and may refuse an empty one."""
    for name, value in {**config.to_dict(), **_numbers(config.model_args)}.items():
        text = as_text(value)[:MAX_VALUE_LENGTH]
        if text and name not in run.parameters and name not in NOT_LOGGED:
            yield {"key": name, "value": text}


def _numbers(model_args: Mapping[str, Any]) -> dict[str, float]:
    """Return the arguments that cannot be secrets, because they are numbers."""
    numbers = {name: value for name, value in model_args.items() if isinstance(value, (int, float))}
    return {f"model_args.{accepted_name(name)}": value for name, value in numbers.items()}


def accepted_name(name: str) -> str:
    """Return the name in the form that MLflow accepts: that of a relative path."""
    parts = (part for part in FOREIGN.sub("_", name).split("/") if part not in ("", ".", ".."))
    return "/".join(parts)[:MAX_NAME_LENGTH].rstrip("/") or "_"
