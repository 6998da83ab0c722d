"""Metrics of tasks that cannot be measured are named at the start."""

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.pytorch_ddp.measures import Tally, check_metrics
from kubetrain_trainer.pytorch_ddp.task import Task


class OfOneProcess:
    def reset(self) -> None: ...

    def update(self, outputs: object, targets: object) -> None: ...

    def compute(self) -> float:
        return 0.0


def test_a_process_without_samples_is_named_before_metrics_exchange_their_state() -> None:
    """In several processes, torchmetrics would exchange what does not fit together, which aborts them."""
    task = Task(model=nn.Linear(1, 1), data=list, loss=lambda *_: None, metrics={"auroc": BinaryAUROC()})
    of_others = iter([[4.0, 0.0, 0.0], [1.0]])  # four samples, the sums of the loss; one process has none
    with pytest.raises(KubetrainError, match=r"^processes without any sample of the split: 1\. Metric 'auroc'"):
        Tally(task, torch.device("cpu")).results(lambda values: next(of_others))


def test_a_metric_that_only_counts_needs_no_samples_in_each_process() -> None:
    task = Task(model=nn.Linear(1, 1), data=list, loss=lambda *_: None, metrics={"accuracy": BinaryAccuracy()})
    with pytest.warns(UserWarning, match="before the ``update``"):
        assert Tally(task, torch.device("cpu")).results(lambda values: [4.0, 2.0, 0.0])["loss"] == 0.5


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (MetricCollection([]), "is a MetricCollection: give each of its metrics by its own name"),
        ("accuracy", "is a str: give a function of outputs and targets, or an object"),
        (OfOneProcess(), "would be that of a single process: let reset"),
    ],
    ids=["collection", "text", "one-process"],
)
def test_it_is_named_with_what_to_give_instead(metric: object, says: str) -> None:
    with pytest.raises(KubetrainError, match=f"^metric 'all' {says}"):
        check_metrics({"all": metric})
