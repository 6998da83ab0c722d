"""A training by a script or command of your own: its environment, and the proof that it made a model.

$KUBETRAIN_OUTPUT/export/         the model that it writes, in any format
$KUBETRAIN_OUTPUT/metrics.json    a JSON object of numbers, which the gate reads; optional
"""

import json
import os
import runpy
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubetrain_trainer.checkpoint_layout import Checkpoint, TrainingProgress, complete_checkpoints
from kubetrain_trainer.dataset_files import check_no_file_is_lost
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.entry import Entry, parse_entry
from kubetrain_trainer.entry_point import Arguments
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.process_role import own_role
from kubetrain_trainer.termination import report_result
from kubetrain_trainer.training_output import TrainingOutput

METRICS_FILE = "metrics.json"


def train_with_own_code(arguments: Arguments, framework: str) -> None:
    """Run the entry, and accept its end as success only with an export."""
    output, role = arguments.output, own_role()
    entry = own_entry(arguments)
    if role.is_chief:
        check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
        output.begin(framework, arguments.config, arguments.dataset_digest)
    if not output.is_finished():
        os.environ.update(environment(arguments))
        run_entry(entry)
        if role.is_chief:
            accept(output, role.world_size)
    if role.is_chief:
        report_result(output.read_result() or {})


def own_entry(arguments: Arguments) -> Entry:
    entry = parse_entry(arguments.config.entry)
    if entry is None:
        raise InvalidSetting("entry is empty: name a script or a command")
    return entry


def environment(arguments: Arguments) -> dict[str, str]:
    """Return the variables by which a script learns what it needs."""
    saved = newest_saved(arguments.output)
    return {
        "KUBETRAIN_DATA": str(arguments.data_dir),
        "KUBETRAIN_OUTPUT": str(arguments.output.path),
        "KUBETRAIN_RUN_ID": arguments.output.path.name,
        "KUBETRAIN_RESUME_FROM": str(saved.path) if saved else "",
        "KUBETRAIN_CONFIG": json.dumps(arguments.config.to_dict()),
    }


def newest_saved(output: TrainingOutput) -> Checkpoint | None:
    """Return the newest complete checkpoint that a training can resume from: some only prove that it ended."""
    saved = [each for each in complete_checkpoints(output.checkpoints) if each.manifest["files"]]
    return saved[-1] if saved else None


def run_entry(entry: Entry) -> None:
    """Run the script in this process, or the command in another one. Exit if it ends with another exit code than 0."""
    if entry.script:
        _run_script(entry)
    else:
        _run_command(entry)


def _run_script(entry: Entry) -> None:
    path = Path(entry.script).resolve()
    if not path.is_file():
        raise InvalidSetting(f"entry: the training image has no script '{entry.script}' in {Path.cwd()}")
    sys.argv = [entry.script, *entry.args]
    sys.path.insert(0, str(path.parent))
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as ended:
        if ended.code not in (None, 0):
            raise


def _run_command(entry: Entry) -> None:
    if shutil.which(entry.command[0]) is None:
        raise InvalidSetting(f"entry: the training image has no program '{entry.command[0]}'")
    process = subprocess.Popen(entry.command)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    code = process.wait()
    if code:
        sys.exit(code if code > 0 else 128 - code)


def accept(output: TrainingOutput, world_size: int) -> None:
    """Complete the output of an entry that ended, unless it did so itself.

    Raises:
        KubetrainError: if it wrote no model.
    """
    if output.is_finished():
        return
    metrics = read_own_metrics(output)
    last = last_checkpoint(output, 0, world_size, metrics)
    output.adopt_export(last)
    finish_output(output, last, metrics)


def last_checkpoint(output: TrainingOutput, step: int, world_size: int, metrics: Mapping[str, float]) -> Checkpoint:
    """Return the newest checkpoint, or write one without files, because the proof of a success is a checkpoint."""
    details = {"world_size": world_size, "metrics": dict(metrics)}
    return newest_saved(output) or output.write_checkpoint(TrainingProgress(step=step), details, lambda folder: None)


def finish_output(output: TrainingOutput, last: Checkpoint, metrics: Mapping[str, float]) -> None:
    write_own_evaluation(output, metrics, "")
    output.finish(last)


def write_own_evaluation(output: TrainingOutput, metrics: Mapping[str, float], split: str) -> None:
    """Write the evaluation of the exported model, which has no metrics if none were measured."""
    export = output.read_export()
    identity = {name: export[name] for name in ("step", "checkpoint", "manifest_sha256", "dataset_digest")}
    output.write_evaluation({"split": split, "samples": 0, "metrics": dict(metrics), **identity})


def read_own_metrics(output: TrainingOutput) -> dict[str, float]:
    """
    Raises:
        KubetrainError: if metrics.json has anything but names with numbers.
    """
    path = output.path / METRICS_FILE
    try:
        return numbers(read_json(path)) if path.exists() else {}
    except (ValueError, TypeError, AttributeError) as error:
        raise KubetrainError(f"{path} must be a JSON object of numbers, by name: {error}") from error


def numbers(given: Mapping[str, Any]) -> dict[str, float]:
    return {str(name): number(value) for name, value in given.items()}


def number(value: Any) -> float:
    """Return the number, which may be a tensor: float() warns of one that has a gradient."""
    return float(value.item() if hasattr(value, "item") else value)
