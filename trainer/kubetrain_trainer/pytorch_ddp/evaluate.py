"""Judge the exported model on the test split.

python -m kubetrain_trainer.pytorch_ddp.evaluate --data-dir DATA --output-dir OUTPUT
"""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch import distributed as dist

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.entry_point import Arguments, parse_arguments, run
from kubetrain_trainer.evaluation_record import classification_record
from kubetrain_trainer.process_role import ProcessRole, torchrun_role
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.pytorch_ddp.checkpoint import load_export
from kubetrain_trainer.pytorch_ddp.data import load
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.sampling import evaluation_share
from kubetrain_trainer.termination import report_result


def evaluate(arguments: Arguments) -> None:
    """Write evaluation.json of the exported model, with the settings that it was trained with."""
    output = arguments.output
    config = output.train_config()
    role, device = torchrun_role(), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    task = build_task(config, arguments.data_dir)
    task.model.to(device)
    export = load_export(output, task.model, device)
    samples = task.data(config.test_split)
    tally = Tally(task, device)
    for outputs, targets in predictions(task, samples, range(len(samples)), config, role, device):
        tally.add(outputs, targets)
        print(format_progress(samples=f"{tally.samples}/{len(samples)}"), flush=True)
    evaluation = {
        "split": config.test_split,
        "samples": tally.samples,
        "metrics": tally.means(),
        **tally.record(getattr(samples, "picture", lambda index: "")),
        **{name: export[name] for name in ("step", "checkpoint", "manifest_sha256")},
        "dataset_digest": arguments.dataset_digest,
    }
    output.write_evaluation(evaluation)
    report_result({"status": "completed", "samples": tally.samples, "metrics": tally.means()})


def mean_metrics(
    task: Task, samples: Any, config: TrainConfig, role: ProcessRole, device: torch.device
) -> dict[str, float]:
    """Loss and metrics over all samples of a split, each process taking its share."""
    tally = Tally(task, device)
    share = evaluation_share(len(samples), role.rank, role.world_size)
    for outputs, targets in predictions(task, samples, share, config, role, device):
        tally.add(outputs, targets)
    if role.world_size > 1:
        dist.all_reduce(tally.sums)
    return tally.means()


def predictions(
    task: Task, samples: Any, indices: Sequence[int], config: TrainConfig, role: ProcessRole, device: torch.device
) -> Iterator[tuple[Any, Any]]:
    batches = [indices[first : first + config.batch_size] for first in range(0, len(indices), config.batch_size)]
    task.model.eval()
    with torch.inference_mode():
        for inputs, targets in load(samples, batches, config, role, device):
            yield task.model(inputs), targets
    task.model.train()


class Tally:
    """Sums over samples, kept on the device until they are asked for."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task = task
        self.sums = torch.zeros(2 + len(task.metrics), dtype=torch.float64, device=device)
        self._truths: list[Tensor] = []
        self._scores: list[Tensor] = []

    def add(self, outputs: Any, targets: Any) -> None:
        losses = self._task.loss(outputs, targets)
        values = [losses, *(metric(outputs, targets) for metric in self._task.metrics.values())]
        sums = [torch.as_tensor(float(len(losses)), device=losses.device), *(value.sum() for value in values)]
        self.sums += torch.stack([each.to(torch.float64) for each in sums])
        if self._task.classes:
            self._truths.append(targets.cpu())
            self._scores.append(outputs.softmax(dim=1).cpu())

    @property
    def samples(self) -> int:
        return int(self.sums[0])

    def means(self) -> dict[str, float]:
        count, *totals = self.sums.tolist()
        return {name: total / count for name, total in zip(["loss", *self._task.metrics], totals, strict=True)}

    def record(self, picture: Any) -> dict[str, Any]:
        if not self._task.classes:
            return {}
        confidences, predicted = torch.cat(self._scores).max(dim=1)
        truths = torch.cat(self._truths).tolist()
        return classification_record(self._task.classes, truths, predicted.tolist(), confidences.tolist(), picture)


if __name__ == "__main__":
    run(lambda: evaluate(parse_arguments("Judge the exported model on the test split.")))
