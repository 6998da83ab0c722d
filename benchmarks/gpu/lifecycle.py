"""Start a training, stop it, resume it, and compare it with one that ran through.

Even two trainings that run through differ on a GPU, where sums are not always computed in the same order.
"""

import signal
import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Figure, run
from trainings import printed, running, seconds_until, steps, train

STEPS, STOP_AFTER = 60, 25
SETTINGS: dict[str, Any] = {
    "model": "torchvision:resnet18",
    "image_size": 64,
    "batch_size": 64,
    "data": "synthetic",
    "synthetic_samples": 4096,
    "max_steps": STEPS,
    "learning_rate": 0.001,
    "precision": "fp32",
    "tf32": False,
    "checkpoint_every": 10,
    "log_every": 1,
    "metrics_port": 0,
}


def measure(miniature: bool) -> list[Figure]:
    settings = SETTINGS | ({"model": "digits_cnn", "image_size": 8} if miniature else {})
    with tempfile.TemporaryDirectory() as folder:
        outputs = [Path(folder, name) for name in ("through", "again", "stopped")]
        through, again, stopped = outputs
        train(settings, through)
        train(settings, again)
        first, stop, resumed = stop_and_resume(settings, stopped)
        return [
            Figure(what="start of the command to the first step", value=first, unit="s"),
            Figure(what="SIGTERM to the end, with everything saved", value=stop, unit="s"),
            Figure(what="start of the command to the first step after the stop", value=resumed, unit="s"),
            Figure(
                what="losses of a training that was stopped: largest difference", value=difference(stopped, through)
            ),
            Figure(what="losses of another one that was not: largest difference", value=difference(again, through)),
        ]


def stop_and_resume(settings: dict[str, Any], output: Path) -> tuple[float, float, float]:
    with running(settings, output) as process:
        first = seconds_until(lambda: steps(output), process)
        seconds_until(lambda: steps(output)[-1]["step"] >= STOP_AFTER, process)
        process.send_signal(signal.SIGTERM)
        began = time.monotonic()
        printed(process, expected=143)
        stop = time.monotonic() - began
    reached = steps(output)[-1]["step"]
    with running(settings, output) as process:
        resumed = seconds_until(lambda: steps(output)[-1]["step"] > reached, process)
        printed(process, expected=0)
    assert [row["step"] for row in steps(output)] == [*range(1, STEPS + 1)]
    return first, stop, resumed


def difference(output: Path, other: Path) -> float:
    """Return the largest difference between the losses of two trainings, relative to those of the other one."""
    pairs = zip(steps(output), steps(other), strict=True)
    return max(abs(one["loss"] / another["loss"] - 1) for one, another in pairs)


if __name__ == "__main__":
    run(measure)
