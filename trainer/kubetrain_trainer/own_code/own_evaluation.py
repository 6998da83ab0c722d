"""Evaluate the exported model with a script or command of your own, which writes $KUBETRAIN_OUTPUT/metrics.json.

python -m kubetrain_trainer.own_code.own_evaluation --data-dir DATA --output-dir OUTPUT
"""

from __future__ import annotations

import json
import os
import sys
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from kubetrain_trainer.data.dataset_files import check_dataset
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.models.latest_model import measure_latest
from kubetrain_trainer.output.model_folder import ModelFolder
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.own_code.own_output import METRICS_FILE, Metrics, read_own_metrics, saving, write_own_evaluation
from kubetrain_trainer.own_code.program import environment, own_entry, run_entry, run_program, with_variables
from kubetrain_trainer.own_code.requirements import use_requirements
from kubetrain_trainer.processes.entry_point import Arguments, evaluation_arguments, run
from kubetrain_trainer.processes.process_role import own_role
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.entry import Entry
from kubetrain_trainer.termination import report_result


def evaluate(arguments: Arguments) -> None:
    evaluation, output = own_entry(arguments).evaluation, arguments.output
    if evaluation is None:
        raise InvalidSetting("train.entry has no evaluation: name a script or a command")
    check_dataset(arguments)
    (output.path / METRICS_FILE).unlink(missing_ok=True)
    os.environ.update({**environment(arguments), "KUBETRAIN_MODEL": str(output.export)})
    use_requirements(arguments.config.requirements, output, own_role())
    measure = partial(measure_published, evaluation, dict(os.environ), Path.cwd())  # as they were before the script ran
    run_entry(evaluation)
    metrics = _measured(evaluation, output)
    latest = measure_latest(arguments, (), measure)
    with saving():
        write_own_evaluation(output, output.read_export(), metrics, "test", latest)
    report_result({"status": "completed", "metrics": metrics})


def measure_published(
    evaluation: Entry, variables: dict[str, str], folder: Path, model: ModelFolder, config: TrainConfig
) -> Metrics:
    """Evaluate a published model in another process, and with another output: there it can find no model but that."""
    with TemporaryDirectory() as output:
        own = {
            "KUBETRAIN_MODEL": str(model.path),
            "KUBETRAIN_OUTPUT": output,
            "KUBETRAIN_CONFIG": json.dumps(config.to_dict()),
        }
        command = evaluation.command or (sys.executable, evaluation.script, *evaluation.args)
        found = {**variables, **own}
        if code := run_program(with_variables(command, found), env=found, cwd=folder):
            raise KubetrainError(f"the evaluation, {evaluation.name}, ended with exit code {code} for it")
        return _measured(evaluation, TrainingOutput(Path(output)))


def _measured(evaluation: Entry, output: TrainingOutput) -> dict[str, float]:
    """
    Raises:
        KubetrainError: if the evaluation wrote no metrics.
    """
    if metrics := read_own_metrics(output):
        return metrics
    raise KubetrainError(
        f"the evaluation, {evaluation.name}, ended with exit code 0, but wrote no {output.path / METRICS_FILE}"
    )


if __name__ == "__main__":
    run(lambda: evaluate(evaluation_arguments("Evaluate the exported model with your own script.")))
