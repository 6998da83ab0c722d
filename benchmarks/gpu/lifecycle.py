"""Start a training, stop it, resume it, and compare it with one that ran through.

Even two trainings that run through differ on a GPU, where sums are not always computed in the same order.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Figure, run
from trainings import steps, stop_and_resume, train

STEPS, STOP_AFTER = 60, 25
SETTINGS: dict[str, Any] = {
    "model": "torchvision:resnet18",
    "image_size": 64,
    "batch_size": 64,
    "data": "synthetic",
    "synthetic": {"samples": 4096},
    "max_steps": STEPS,
    "learning_rate": 0.001,
    "precision": "fp32",
    "checkpoint_every": 10,
    "log_every": 1,
    "metrics_port": 0,
}


def measure(miniature: bool) -> Iterator[Figure]:
    settings = SETTINGS | ({"model": "digits_cnn", "image_size": 8} if miniature else {})
    with tempfile.TemporaryDirectory() as folder:
        through, again, stopped = (Path(folder, name) for name in ("through", "again", "stopped"))
        first, stop, resumed = stop_and_resume(settings, stopped, stop_after=STOP_AFTER)
        yield Figure(what="start of the command to the first step", value=first, unit="s")
        yield Figure(what="SIGTERM to the end, with everything saved", value=stop, unit="s")
        yield Figure(what="start of the command to the first step after the stop", value=resumed, unit="s")
        assert [row["step"] for row in steps(stopped)] == [*range(1, STEPS + 1)]
        train(settings, through)
        train(settings, again)
        differences = difference(stopped, through), difference(again, through)
        yield Figure(what="losses of a training that was stopped: largest difference", value=differences[0])
        yield Figure(what="losses of another one that was not: largest difference", value=differences[1])


def difference(output: Path, other: Path) -> float:
    """Return the largest difference between the losses of two trainings, relative to those of the other one."""
    pairs = zip(steps(output), steps(other), strict=True)
    return max(abs(one["loss"] / another["loss"] - 1) for one, another in pairs)


if __name__ == "__main__":
    run(measure)
