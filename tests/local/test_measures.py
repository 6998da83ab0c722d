"""Metrics of tasks that cannot be measured are named at the start."""

import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy, BinaryAUROC

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.evaluate import mean_metrics, top_classes
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.loading import Loaded
from kubetrain_trainer.pytorch_ddp.measures import Tally, check_metrics
from kubetrain_trainer.pytorch_ddp.task import Task, accuracy
from kubetrain_trainer.settings.config import TrainConfig


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


def test_a_metric_forgets_the_samples_of_a_split_once_it_has_its_result() -> None:
    metric = BinaryAUROC()
    task = Task(model=nn.Linear(1, 1), data=list, loss=lambda outputs, _: outputs, metrics={"auroc": metric})
    tally = Tally(task, torch.device("cpu"))
    tally.add(torch.tensor([0.25, 0.75]), torch.tensor([0, 1]), samples=2)
    assert tally.results() == {"loss": 0.5, "auroc": 1.0}
    assert metric.preds == []


@pytest.mark.parametrize("other_stops", [False, True])
def test_a_validation_has_no_result_in_any_process_if_one_has_to_stop(other_stops: bool) -> None:
    class OneOfTwo(Group):
        def sum(self, values: list[float]) -> list[float]:
            is_asked_who_stops = len(values) == 2
            return [values[0], float(other_stops)] if is_asked_who_stops else values

    samples, device = torch.ones(4, 1), torch.device("cpu")
    training: Any = SimpleNamespace(
        config=TrainConfig(precision="fp32"),
        evaluated=Task(model=nn.Identity(), data=list, loss=lambda outputs, targets: outputs[:, 0] - targets),
        group=OneOfTwo(ProcessRole(world_size=2), device),
        stop=SimpleNamespace(is_requested=False),
        validation=SimpleNamespace(load_split=lambda: [Loaded(samples, samples[:, 0] / 2, samples=4)]),
        watchdog=SimpleNamespace(beat=lambda doing: None),
    )
    assert mean_metrics(training, step=5) == (None if other_stops else {"loss": 0.5})


def test_the_accuracy_and_the_matrix_count_the_same_answers() -> None:
    """Two scores may share a probability, and a score that is not a number is no answer."""
    scores = torch.tensor([[0.3, 0.3 + 3e-8], [1.0, 0.0], [math.nan, math.nan]])
    predictions, confidences = top_classes(scores)
    assert predictions[:2] == [1, 0]
    assert [math.isfinite(each) for each in confidences] == [True, True, False]
    assert accuracy(scores, torch.tensor([1, 0, 0])).tolist() == [1, 1, 0]
