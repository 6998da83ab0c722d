"""Evaluate the exported model on the test split.

python -m kubetrain_trainer.pytorch_ddp.evaluate --data-dir DATA --output-dir OUTPUT
"""

import contextlib
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.data.dataset_files import check_dataset
from kubetrain_trainer.data.image_folder import log_notes
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.evaluation_record import ClassPredictions, write_evaluation
from kubetrain_trainer.models.latest_model import Metrics, measure_latest
from kubetrain_trainer.output.image_input import with_recorded_input
from kubetrain_trainer.output.model_folder import ModelFolder
from kubetrain_trainer.processes.entry_point import Arguments, evaluation_arguments, run
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.data_parallel import uncompiled
from kubetrain_trainer.pytorch_ddp.export import load_export, load_weights
from kubetrain_trainer.pytorch_ddp.group import Group, choose_device
from kubetrain_trainer.pytorch_ddp.loading import Loaded
from kubetrain_trainer.pytorch_ddp.measures import Tally
from kubetrain_trainer.pytorch_ddp.precision import forward
from kubetrain_trainer.pytorch_ddp.sharding import is_sharded, reshard
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.pytorch_ddp.training import Training, open_loader
from kubetrain_trainer.reporting.progress_line import format_progress
from kubetrain_trainer.settings.config import TrainConfig


def evaluate(arguments: Arguments) -> None:
    """Evaluate the exported model and write evaluation.json."""
    check_dataset(arguments)
    config, device = arguments.config, choose_device(arguments.config, ProcessRole())
    task = build_task(config, arguments.data_dir)
    export = load_export(arguments.output, task.model, device)
    samples = task.data(config.test_split)
    log_notes(samples)
    tally, predicted = measure(task, samples, config, device)
    measured = tally.measured()  # before the latest model is measured, perhaps by the same objects
    latest = measure_latest(arguments, task.classes, partial(measure_published, arguments.data_dir, device))
    write_evaluation(arguments, export, samples, measured, predicted, latest)


def measure_published(data_dir: Path, device: torch.device, model: ModelFolder, config: TrainConfig) -> Metrics:
    """Evaluate a published model, which was trained with these settings, on this dataset."""
    sized = with_recorded_input(config, model.description)
    task = build_task(sized, data_dir)
    load_weights(model.path, model.description["files"], task.model, device)
    return measure(task, task.data(sized.test_split), sized, device)[0].results()


def measure(task: Task, samples: Any, config: TrainConfig, device: torch.device) -> tuple[Tally, ClassPredictions]:
    tally, predicted = Tally(task, device), ClassPredictions(task.classes)
    loader = open_loader(samples, task, config, ProcessRole(), device)
    for outputs, targets, count in predictions(task, loader.load_split(), config, device):
        tally.add(outputs, targets, count)
        if task.classes:
            predicted.add(targets.tolist(), *top_classes(outputs))
        print(format_progress(samples=f"{tally.samples}/{loader.size or '?'}"), flush=True)
    return tally, predicted


def mean_metrics(training: Training, step: int) -> dict[str, float] | None:
    """Evaluate a split on all processes. Return its loss and metrics, or None if interrupted by a stop."""
    task, group, stop = training.evaluated, training.group, training.stop
    tally, doing = Tally(task, group.device), f"the validation after step {step}"
    training.watchdog.beat(doing)
    loaded = training.validation.load_split()
    if is_sharded(training.config, group):
        batches = in_lockstep(loaded, group, stop)
    else:
        batches = takewhile(lambda _: not stop.is_requested, loaded)
    for outputs, targets, count in predictions(task, batches, training.config, group.device):
        if count:
            tally.add(outputs, targets, count)
        training.watchdog.beat(doing)
    reshard(task.model)
    if any(group.gather(float(stop.is_requested))):
        return None
    return tally.results(group.sum_once)


def predictions(
    task: Task, batches: Iterable[Loaded], config: TrainConfig, device: torch.device
) -> Iterator[tuple[Any, Any, int]]:
    """Yield the outputs and targets of each batch, and the number of its samples."""
    with evaluating(task.model):
        for inputs, targets, count in batches:
            with torch.no_grad(), uncompiled(config):
                outputs = forward(task.model, inputs, config, device)
            yield outputs, targets, count


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Switch the model to evaluation mode, without dropout, and back on exit."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        model.train(modes[0][1])
        for module, is_training in modes:  # frozen ones stay in evaluation mode
            module.training = is_training


def probabilities(outputs: Any) -> Any:
    """Return the probability of each class, from scores of shape (batch, classes)."""
    return outputs.softmax(dim=1)


def top_classes(outputs: Any) -> tuple[list[int], list[float]]:
    """Return the predicted class of each sample and its confidence, from scores of shape (batch, classes)."""
    return outputs.argmax(dim=1).tolist(), probabilities(outputs).amax(dim=1).tolist()


def in_lockstep(batches: Iterator[Loaded], group: Group, stop: Any) -> Iterator[Loaded]:
    """Yield the same number of batches in every process, until one is asked to stop, because a sharded model computes
    only in all of them together. A process that has no more gets its last one again, with 0 samples.

    Raises:
        KubetrainError: if a process has none.
    """
    batch = last = next(batches, None)
    while True:
        marks = [batch is not None, stop.is_requested, last is None]
        remaining, stopping, lacking = group.sum([float(mark) for mark in marks])
        if not remaining or stopping:
            return
        if lacking:
            raise KubetrainError(
                f"{lacking:.0f} of {group.role.world_size} processes have no sample of the validation split: with "
                "sharding, each needs one"
            )
        filler = last._replace(samples=0)  # type: ignore[union-attr]
        yield batch or filler
        batch = next(batches, None)
        last = batch or last


if __name__ == "__main__":
    run(lambda: evaluate(evaluation_arguments("Evaluate the exported model on the test split.")))
