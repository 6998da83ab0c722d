"""What proves that a script or command of your own made a model.

$KUBETRAIN_OUTPUT/export/         the model, in any format, or what train.outputs names in the working directory
$KUBETRAIN_OUTPUT/metrics.json    a JSON object of numbers, which the gate reads; optional
"""

from __future__ import annotations

import contextlib
import json
import operator
import os
import shutil
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from textwrap import shorten
from typing import Any, Mapping

from kubetrain_trainer.durable_files import read_json, write_atomically, write_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import AFTER_THE_END, LOST_ANOTHER, TransientFailure
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress, resumable_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.own_code.own_files import collect_model
from kubetrain_trainer.processes.process_role import ProcessRole, own_role
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.stop_signal import EXIT_CODE, StopSignal, marked_as_saving

METRICS_FILE = "metrics.json"
OTHERS_TIMEOUT_SECONDS = 60.0
"""Rank 0 waits no longer: a process that failed and started again could wait for rank 0 in turn."""
POLL_SECONDS = 0.1
TICK_SECONDS = 0.01
"""Two files may get the same time within a few milliseconds."""
Metrics = Mapping[str, float]
Facts = Mapping[str, Any]
NOT_MEASURED: Facts = {}


def forget_model(output: TrainingOutput, role: ProcessRole) -> None:
    """Remove what an attempt that was killed left behind: another one could end without writing it again."""
    _unmark(_end_mark(output, role.rank))
    output.path.mkdir(parents=True, exist_ok=True)  # rank 0, which makes it, may not have begun
    if role.is_rank_0:
        (output.path / METRICS_FILE).unlink(missing_ok=True)
        if output.export.exists():
            shutil.rmtree(output.export)
        output.export.mkdir()
    time.sleep(TICK_SECONDS)
    _mark(_start_mark(output, role.rank))


def accept_model(output: TrainingOutput, role: ProcessRole, stop: StopSignal, folder: Path) -> None:
    """Complete the output of a script or command that ended, unless session.finish() has done so.

    Args:
        folder: The working directory in which it began.

    Raises:
        KubetrainError: if the model is missing.
    """
    if output.is_finished():
        return
    if not role.is_rank_0:
        _mark(_end_mark(output, role.rank))
        _unmark(_start_mark(output, role.rank))
        return
    with saving():
        _await_others(output, role, stop)
        config, metrics = output.train_config(), read_own_metrics(output)
        collect_model(output, folder, config, _time_of(_start_mark(output, 0)))
        last = proof_of_end(output, role.world_size, metrics)
        if config.publishes:
            output.adopt_export(last)
        record_end(output, last, metrics)
    _unmark(_start_mark(output, 0))


def _await_others(output: TrainingOutput, role: ProcessRole, stop: StopSignal) -> None:
    """Wait for the other processes, which may write parts of the model too, or delete temporary files beside it.

    Exit if this process has to stop before, for example because another one failed.

    Raises:
        TransientFailure: if one of them starts again: it would need this process.
    """
    others = range(1, role.world_size)
    marks = [_end_mark(output, rank) for rank in others]
    starts, deadline = _starts(output, others), time.monotonic() + OTHERS_TIMEOUT_SECONDS
    while not all(map(_time_of, marks)) and time.monotonic() < deadline:
        if stop.is_requested:
            sys.exit(EXIT_CODE)
        if any(before and now and before != now for before, now in zip(starts, _starts(output, others))):
            raise TransientFailure(f"{LOST_ANOTHER} {AFTER_THE_END}: look for the one that failed first")
        time.sleep(POLL_SECONDS)
    for mark in marks:
        _unmark(mark)


def _starts(output: TrainingOutput, ranks: range) -> list[int]:
    """Return the times of the last starts of these processes; 0: not started yet, or ended."""
    return [_time_of(_start_mark(output, rank)) for rank in ranks]


def _mark(mark: Path) -> None:
    mark.write_text(uuid.uuid4().hex)  # a store has no times of its own
    output_store.push(mark)


def _unmark(mark: Path) -> None:
    mark.unlink(missing_ok=True)
    output_store.push(mark)


def _time_of(mark: Path) -> int:
    output_store.pull(mark)
    try:
        return mark.stat().st_mtime_ns
    except FileNotFoundError:  # its process deletes it when it ends, at any moment
        return 0


def _start_mark(output: TrainingOutput, rank: int) -> Path:
    return output.path / f".started-{rank}"


def _end_mark(output: TrainingOutput, rank: int) -> Path:
    return output.path / f".ended-{rank}"


@contextlib.contextmanager
def saving() -> Iterator[None]:
    """Write so that the launcher waits for it, and that later steps can read it, which run as other users."""
    before = os.umask(0o022)
    try:
        with marked_as_saving():
            yield
    finally:
        os.umask(before)


def proof_of_end(output: TrainingOutput, world_size: int, metrics: Metrics) -> Checkpoint:
    """Return the newest checkpoint, or write one without files, because a checkpoint proves the success."""
    if saved := resumable_checkpoints(output.checkpoints):
        return saved[-1]
    details = {"world_size": world_size, "metrics": dict(metrics)}
    step = max((int(row["step"]) for row in read_metrics(output.metrics)), default=0)  # those that were logged
    return output.write_checkpoint(TrainingProgress(step=step), details, lambda folder: None)


def record_end(output: TrainingOutput, last: Checkpoint, metrics: Metrics) -> None:
    model = {**last.manifest, "checkpoint": last.name, "manifest_sha256": last.manifest_sha256}
    write_own_evaluation(output, model, metrics, "")
    output.finish(last)


def write_own_evaluation(
    output: TrainingOutput, model: Facts, metrics: Metrics, split: str, latest: Facts = NOT_MEASURED
) -> None:
    """Write the evaluation of a model, which has no metrics if none were measured.

    Args:
        model: The manifest of the export, or of its checkpoint.
        latest: What it says of the latest published model; empty if that was not evaluated.
    """
    identity = {name: model[name] for name in ("step", "checkpoint", "manifest_sha256", "dataset_digest")}
    output.write_evaluation({"split": split, "samples": 0, "metrics": dict(metrics), **identity, **latest})


def read_own_metrics(output: TrainingOutput) -> dict[str, float]:
    """
    Raises:
        KubetrainError: if metrics.json has anything but names with numbers.
    """
    path = output.path / METRICS_FILE
    try:
        return numbers(read_json(path)) if path.exists() else {}
    except (ValueError, AttributeError, KubetrainError) as error:
        raise KubetrainError(f"{path} must be a JSON object of numbers, by name: {error}") from error


def keep_returned(returned: Any) -> None:
    """Write the numbers that a function of your own returned as the metrics, unless it has written some."""
    path = Path(os.environ["KUBETRAIN_OUTPUT"]) / METRICS_FILE
    if isinstance(returned, Mapping) and own_role().is_rank_0 and not path.exists():
        try:
            write_json(path, numbers(returned))
        except KubetrainError as error:
            print(f"warning: what the function returned is not used as metrics: {error}", flush=True)


def write_own_metrics(output: TrainingOutput, metrics: Metrics) -> None:
    """Add metrics to those that the script wrote. JSON as Python reads it may have NaN."""
    write_atomically(output.path / METRICS_FILE, json.dumps({**read_own_metrics(output), **metrics}).encode())


def numbers(given: Mapping[str, Any]) -> dict[str, float]:
    """Return the values as numbers. Each may be a tensor: float() warns of one that has a gradient.

    Raises:
        KubetrainError: for a value that is not one.
    """
    return {str(name): _number(str(name), value) for name, value in given.items()}


def _number(name: str, value: Any) -> float:
    try:
        return float(_plain(value))
    except (TypeError, ValueError, RuntimeError, OverflowError):
        raise KubetrainError(f"{name} must be a single number, not {shorten(repr(value), 60)}") from None


def whole_number(step: Any) -> int:
    """Return the number of a step, which may be a tensor or a variable.

    Raises:
        KubetrainError: for another value.
    """
    with contextlib.suppress(TypeError, ValueError, RuntimeError):
        if (number := operator.index(_plain(step))) >= 0:
            return number
    raise KubetrainError(f"the step must be a whole number from 0, not {shorten(repr(step), 60)}")


def _plain(value: Any) -> Any:
    """Return the number in a tensor of PyTorch, an array of NumPy or a variable of TensorFlow."""
    if hasattr(value, "item"):
        return value.item()
    return value.numpy() if hasattr(value, "numpy") else value
