"""Evaluate the exported model with a script or command of your own, which writes $KUBETRAIN_OUTPUT/metrics.json.

python -m kubetrain_trainer.own_evaluation --data-dir DATA --output-dir OUTPUT
"""

import os

from kubetrain_trainer.dataset_files import check_no_file_is_lost
from kubetrain_trainer.entry_point import Arguments, evaluation_arguments, run
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.own_code import environment, own_entry, run_entry
from kubetrain_trainer.own_output import METRICS_FILE, read_own_metrics, saving, write_own_evaluation
from kubetrain_trainer.termination import report_result


def evaluate(arguments: Arguments) -> None:
    evaluation, output = own_entry(arguments).evaluation, arguments.output
    if evaluation is None:
        raise InvalidSetting("entry has no evaluation: name a script or a command")
    check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
    (output.path / METRICS_FILE).unlink(missing_ok=True)
    os.environ.update(environment(arguments) | {"KUBETRAIN_MODEL": str(output.export)})
    run_entry(evaluation)
    metrics = read_own_metrics(output)
    if not metrics:
        raise KubetrainError(
            f"the evaluation, {evaluation.name}, ended with exit code 0, but wrote no {output.path / METRICS_FILE}"
        )
    with saving():
        write_own_evaluation(output, metrics, "test")
    report_result({"status": "completed", "metrics": metrics})


if __name__ == "__main__":
    run(lambda: evaluate(evaluation_arguments("Evaluate the exported model with your own script.")))
