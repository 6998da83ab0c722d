"""The loss and metrics of a split: means over its samples, and metrics that need the whole split."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.evaluation_record import Measured, check_outputs, check_targets
from kubetrain_trainer.models.measures import check_alone, confidence_intervals, measure_samples
from kubetrain_trainer.pytorch_ddp.structures import split
from kubetrain_trainer.pytorch_ddp.task import Task

SumOverProcesses = Callable[[list[float]], list[float]]


class Tally:
    """Sums over samples, kept on the device until they are read, and the metrics that count for themselves."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._names, self._classes = ["loss", *task.metrics], task.classes
        self._metrics = {name: metric for name, metric in task.metrics.items() if _needs_whole_split(metric)}
        self._measures = {
            "loss": task.loss,
            **{name: metric for name, metric in task.metrics.items() if name not in self._metrics},
        }
        self._sums = torch.zeros(1 + 2 * len(self._measures), dtype=torch.float64, device=device)
        """The number of samples, the sum of each measure's values, and that of their squares."""
        for metric in self._metrics.values():
            _begin(metric, device)

    @torch.no_grad()
    def add(self, outputs: Any, targets: Any, samples: int) -> None:
        check_outputs(self._classes, outputs)
        check_targets(self._classes, targets)
        values = [value.double() for value in measure_samples(self._measures, outputs, targets, samples)]
        check_alone(self._measures["loss"], values[0], lambda: split((outputs, targets), samples, samples)[0])
        count = torch.full((), samples, dtype=torch.float64, device=self._sums.device)
        sums, squares = [value.sum() for value in values], [value.square().sum() for value in values]
        self._sums += torch.stack([count, *sums, *squares])
        for metric in self._metrics.values():
            metric.update(outputs, targets)

    @property
    def samples(self) -> int:
        return int(self._sums[0])

    def results(self, total: SumOverProcesses = list) -> dict[str, float]:
        """Return the value of each measure over all processes, which call this together."""
        count, *sums = total(self._sums.tolist())
        if not count:
            raise KubetrainError("the split to evaluate has no samples: check its files and data.validation_split")
        self._check_all_have_samples(total)
        means = {name: value / count for name, value in zip(self._measures, sums, strict=False)}
        results = means | {name: _end(name, metric, total) for name, metric in self._metrics.items()}
        return {name: results[name] for name in self._names}

    def _check_all_have_samples(self, total: SumOverProcesses) -> None:
        """Check it for metrics of torchmetrics that keep samples. Without any, they may gather another type of
        values, which ends the processes."""
        names = [name for name, metric in self._metrics.items() if _keeps_samples(metric)]
        if names and (lacking := total([float(not self.samples)])[0]):
            raise KubetrainError(
                f"processes without any sample of the split: {lacking:.0f}. Metric '{names[0]}' needs one in each: "
                "use fewer workers or a larger split"
            )

    def measured(self) -> Measured:
        """Return what evaluation.json says of the samples of this process."""
        return Measured(self.samples, self.results(), confidence_intervals(self._measures, self._sums.tolist()))


def check_metrics(metrics: Mapping[str, Any]) -> None:
    """Check that each metric has one value for each sample or counts over processes.

    Raises:
        KubetrainError: for another object.
    """
    for name, metric in metrics.items():
        if isinstance(metric, Mapping | nn.ModuleDict):  # such as a MetricCollection of torchmetrics
            raise KubetrainError(
                f"metric '{name}' is a {type(metric).__name__}: give each of its metrics by its own name"
            )
        if not callable(metric) and not _needs_whole_split(metric):
            raise KubetrainError(
                f"metric '{name}' is a {type(metric).__name__}: give a function of outputs and targets, or an object "
                "with reset(), update(outputs, targets) and compute()"
            )
        if _needs_whole_split(metric) and not _adds_up_itself(metric):
            metric.reset()
            if not isinstance(getattr(metric, "sums", None), torch.Tensor):
                raise KubetrainError(
                    f"metric '{name}' would be that of a single process: let reset() set a tensor `sums`, which is "
                    "added up over all processes before compute(), or use a metric of torchmetrics"
                )


def _needs_whole_split(metric: Any) -> bool:
    return all(hasattr(metric, method) for method in ("reset", "update", "compute"))


def _adds_up_itself(metric: Any) -> bool:
    """Return True for metrics of torchmetrics, which gather their state when they compute."""
    return hasattr(metric, "sync_context")


def _keeps_samples(metric: Any) -> bool:
    return _adds_up_itself(metric) and any(isinstance(state, list) for state in metric.metric_state.values())


def _begin(metric: Any, device: torch.device) -> None:
    metric.reset()
    if _adds_up_itself(metric):
        metric.to(device)
    else:
        metric.sums = metric.sums.to(device)


def _end(name: str, metric: Any, total: SumOverProcesses) -> float:
    if not _adds_up_itself(metric):
        metric.sums = torch.tensor(total(metric.sums.flatten().tolist()), dtype=metric.sums.dtype).view_as(metric.sums)
    value = metric.compute()
    metric.reset()  # it may hold every output of the split
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise KubetrainError(
            f"compute() of the metric '{name}' returned a {type(value).__name__} that is not a single number: return "
            "one, such as the mean over classes"
        ) from None
