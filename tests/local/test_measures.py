"""Metrics of tasks that cannot be measured are named at the start."""

import pytest
from torchmetrics import MetricCollection

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.pytorch_ddp.measures import check_metrics


class OfOneProcess:
    def reset(self) -> None: ...

    def update(self, outputs: object, targets: object) -> None: ...

    def compute(self) -> float:
        return 0.0


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
