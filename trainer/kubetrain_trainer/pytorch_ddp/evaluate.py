"""Judge the exported model on the test split.

python -m kubetrain_trainer.pytorch_ddp.evaluate --data-dir DATA --output-dir OUTPUT
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.durable_files import finite
from kubetrain_trainer.entry_point import Arguments, evaluation_arguments, run
from kubetrain_trainer.evaluation_record import ClassPredictions
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.pytorch_ddp.checkpoint import load_export
from kubetrain_trainer.pytorch_ddp.data import Loader
from kubetrain_trainer.pytorch_ddp.group import choose_device
from kubetrain_trainer.pytorch_ddp.precision import answer
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.pytorch_ddp.training import Training
from kubetrain_trainer.sampling import evaluation_share
from kubetrain_trainer.termination import report_result


def evaluate(arguments: Arguments) -> None:
    """Write evaluation.json of the exported model."""
    config, output, role = arguments.config, arguments.output, ProcessRole()
    device = choose_device(role)
    task = build_task(config, arguments.data_dir)
    task.model.to(device)
    export = load_export(output, task.model, device)
    samples = task.data(config.test_split)
    tally, answers = Tally(task, device), ClassPredictions(task.classes)
    loader = Loader(samples, config, role, device)
    for outputs, targets in predictions(task, loader, range(len(samples)), config, device):
        tally.add(outputs, targets)
        if task.classes:
            answers.add(targets.tolist(), *best_guesses(outputs))
        print(format_progress(samples=f"{tally.samples}/{len(samples)}"), flush=True)
    evaluation = {
        "split": config.test_split,
        "samples": tally.samples,
        "metrics": tally.means(),
        **answers.record(getattr(samples, "picture", lambda index: "")),
        **{name: export[name] for name in ("step", "checkpoint", "manifest_sha256")},
        "dataset_digest": arguments.dataset_digest,
    }
    output.write_evaluation(evaluation)
    report_result({"status": "completed", "samples": tally.samples, "metrics": finite(tally.means())})


def mean_metrics(training: Training, loader: Loader, step: int) -> dict[str, float] | None:
    """Loss and metrics over all samples of a split, each process taking its share; None where a stop cut it short."""
    task, role, device = training.evaluated, training.group.role, training.group.device
    tally, is_cut, doing = Tally(task, device), False, f"the validation after step {step}"
    training.watchdog.beat(doing)
    share = evaluation_share(loader.size, role.rank, role.world_size)
    for outputs, targets in predictions(task, loader, share, training.config, device):
        tally.add(outputs, targets)
        training.watchdog.beat(doing)
        if is_cut := training.stop.is_asked:
            break
    *sums, cuts = training.group.sum([*tally.sums.tolist(), float(is_cut)])
    tally.sums = torch.tensor(sums, dtype=torch.float64)
    return None if cuts else tally.means()


def predictions(
    task: Task, loader: Loader, indices: Sequence[int], config: TrainConfig, device: torch.device
) -> Iterator[tuple[Any, Any]]:
    batches = [indices[first : first + config.batch_size] for first in range(0, len(indices), config.batch_size)]
    with evaluating(task.model):
        for inputs, targets in loader.load(batches):
            with torch.no_grad():
                outputs = answer(task.model, inputs, config, device)
            yield outputs, targets


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model as it is used, without dropout; afterwards each part of it trains that did before."""
    training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True


class Tally:
    """Sums over samples, on the device until they are asked for."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task = task
        self.sums = torch.zeros(2 + len(task.metrics), dtype=torch.float64, device=device)

    @torch.no_grad()
    def add(self, outputs: Any, targets: Any) -> None:
        losses = self._task.loss(outputs, targets)
        metrics = [metric(outputs, targets) for metric in self._task.metrics.values()]
        values = [torch.ones_like(losses), losses, *metrics]
        self.sums += torch.stack([value.sum(dtype=torch.float64) for value in values])

    @property
    def samples(self) -> int:
        return int(self.sums[0])

    def means(self) -> dict[str, float]:
        count, *totals = self.sums.tolist()
        return {name: total / count for name, total in zip(["loss", *self._task.metrics], totals, strict=True)}


def best_guesses(outputs: Any) -> tuple[list[int], list[float]]:
    """The class that each sample is taken for, and how surely."""
    confidences, predictions = outputs.softmax(dim=1).max(dim=1)
    return predictions.tolist(), confidences.tolist()


if __name__ == "__main__":
    run(lambda: evaluate(evaluation_arguments("Judge the exported model on the test split.")))
