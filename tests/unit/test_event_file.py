"""TensorBoard reads the event files, which are written without it."""

import math
from pathlib import Path

from kubetrain_trainer.reporting.event_file import EventFile
from support.outside import tensorboard_scalars


def test_tensorboard_reads_each_scalar(tmp_path: Path) -> None:
    events = EventFile(tmp_path / "tensorboard", resumed_step=0)
    events.append({"step": 5, "epoch": 0, "loss": 0.5, "läßt": 1})
    events.append({"step": 3_000_000_000, "epoch": 300, "loss": math.nan})
    events.append({"step": 3_000_000_001, "loss": 1e300})
    scalars = tensorboard_scalars(tmp_path / "tensorboard")
    assert scalars.keys() == {"epoch", "loss", "läßt"}
    assert scalars["epoch"] == [(5, 0.0), (3_000_000_000, 300.0)]
    assert scalars["loss"][0] == (5, 0.5)
    assert math.isnan(scalars["loss"][1][1])
    assert scalars["loss"][2] == (3_000_000_001, math.inf)


def test_a_resumed_run_shows_each_step_once(tmp_path: Path) -> None:
    first = EventFile(tmp_path, resumed_step=0)
    for step in (1, 2, 3, 4):
        first.append({"step": step, "loss": 1.0})
    torn = next(tmp_path.iterdir())
    torn.write_bytes(torn.read_bytes()[:-3])  # its writer was killed
    second = EventFile(tmp_path, resumed_step=2)
    second.append({"step": 3, "loss": 0.5})
    third = EventFile(tmp_path, resumed_step=3)
    third.append({"step": 4, "loss": 0.25})
    assert tensorboard_scalars(tmp_path) == {"loss": [(1, 1.0), (2, 1.0), (3, 0.5), (4, 0.25)]}
    assert [each.restarts for each in (first, second, third)] == [0, 1, 2]
