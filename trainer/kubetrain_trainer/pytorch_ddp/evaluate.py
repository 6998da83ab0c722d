"""Evaluate the exported model on the test split.

python -m kubetrain_trainer.pytorch_ddp.evaluate --data-dir DATA --output-dir OUTPUT
"""

import contextlib
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.dataset_files import check_no_file_is_lost
from kubetrain_trainer.entry_point import Arguments, evaluation_arguments, run
from kubetrain_trainer.evaluation_record import ClassPredictions, write_evaluation
from kubetrain_trainer.image_folder import log_notes
from kubetrain_trainer.image_input import with_recorded_input
from kubetrain_trainer.latest_model import Metrics, measure_latest
from kubetrain_trainer.model_folder import ModelFolder
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.pytorch_ddp.checkpoint import EXPORT_FILE, load_export, load_weights
from kubetrain_trainer.pytorch_ddp.data import Loader
from kubetrain_trainer.pytorch_ddp.group import choose_device
from kubetrain_trainer.pytorch_ddp.precision import forward
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.pytorch_ddp.training import Training
from kubetrain_trainer.sample_values import measure_samples
from kubetrain_trainer.sampling import evaluation_indices


def evaluate(arguments: Arguments) -> None:
    """Evaluate the exported model and write evaluation.json."""
    check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
    config, device = arguments.config, choose_device(ProcessRole())
    task = build_task(config, arguments.data_dir)
    task.model.to(device)
    export = load_export(arguments.output, task.model, device)
    samples = task.data(config.test_split)
    log_notes(samples)
    metrics, predicted = measure(task, samples, config, device)
    latest = measure_latest(arguments, task.classes, partial(measure_published, arguments.data_dir, device))
    write_evaluation(arguments, export, samples, metrics, predicted, latest)


def measure_published(data_dir: Path, device: torch.device, model: ModelFolder, config: TrainConfig) -> Metrics:
    """Evaluate a published model, which was trained with these settings, on this dataset."""
    sized = with_recorded_input(config, model.description)
    task = build_task(sized, data_dir)
    load_weights(model.path / EXPORT_FILE, task.model.to(device), device)
    return measure(task, task.data(sized.test_split), sized, device)[0]


def measure(
    task: Task, samples: Any, config: TrainConfig, device: torch.device
) -> tuple[dict[str, float], ClassPredictions]:
    tally, predicted = Tally(task, device), ClassPredictions(task.classes)
    loader = Loader(samples, config, ProcessRole(), device)
    for outputs, targets in predictions(task, loader, range(len(samples)), config, device):
        tally.add(outputs, targets)
        if task.classes:
            predicted.add(targets.tolist(), *top_classes(outputs))
        print(format_progress(samples=f"{tally.samples}/{len(samples)}"), flush=True)
    return tally.means(), predicted


def mean_metrics(training: Training, loader: Loader, step: int) -> dict[str, float] | None:
    """Evaluate a split, a part in each process, and return its loss and metrics, or None if interrupted by a stop."""
    task, role, device = training.evaluated, training.group.role, training.group.device
    tally, is_interrupted, doing = Tally(task, device), False, f"the validation after step {step}"
    training.watchdog.beat(doing)
    indices = evaluation_indices(loader.size, role.rank, role.world_size)
    for outputs, targets in predictions(task, loader, indices, training.config, device):
        tally.add(outputs, targets)
        training.watchdog.beat(doing)
        if is_interrupted := training.stop.is_requested:
            break
    *sums, interruptions = training.group.sum([*tally.sums.tolist(), float(is_interrupted)])
    tally.sums = torch.tensor(sums, dtype=torch.float64)
    return None if interruptions else tally.means()


def predictions(
    task: Task, loader: Loader, indices: Sequence[int], config: TrainConfig, device: torch.device
) -> Iterator[tuple[Any, Any]]:
    batches = [indices[first : first + config.batch_size] for first in range(0, len(indices), config.batch_size)]
    with evaluating(task.model):
        for inputs, targets in loader.load(batches):
            with torch.no_grad():
                outputs = forward(task.model, inputs, config, device)
            yield outputs, targets


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch the model to evaluation mode, without dropout, and restore the mode of each module on exit."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Tally:
    """Sums over samples, kept on the device until they are read."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task = task
        self.sums = torch.zeros(2 + len(task.metrics), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, outputs: Any, targets: Any) -> None:
        samples, values = measure_samples({"loss": self._task.loss, **self._task.metrics}, outputs, targets)
        count = torch.full((), samples, dtype=torch.float64, device=self.sums.device)
        self.sums += torch.stack([count, *(each.sum(dtype=torch.float64) for each in values)])

    @property
    def samples(self) -> int:
        return int(self.sums[0])

    def means(self) -> dict[str, float]:
        count, *totals = self.sums.tolist()
        return {name: total / count for name, total in zip(["loss", *self._task.metrics], totals, strict=True)}


def probabilities(outputs: Any) -> Any:
    """Return the probability of each class, from scores of shape (batch, classes)."""
    return outputs.softmax(dim=1)


def top_classes(outputs: Any) -> tuple[list[int], list[float]]:
    """Return the predicted class of each sample and its confidence, from scores of shape (batch, classes)."""
    confidences, predictions = probabilities(outputs).max(dim=1)
    return predictions.tolist(), confidences.tolist()


if __name__ == "__main__":
    run(lambda: evaluate(evaluation_arguments("Evaluate the exported model on the test split.")))
