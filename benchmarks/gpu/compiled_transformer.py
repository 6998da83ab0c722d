"""The transformer of 1.07 billion parameters with compile=true."""

import tempfile
from pathlib import Path

from figures import Figure, run
from language_model import Shape
from trainings import running, seconds_until, steps
from transformer import TINY, median_step, settings, utilization

UNTIMED_STEPS, STEPS = 8, 25


def measure(miniature: bool) -> list[Figure]:
    shape = TINY if miniature else Shape()
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "compiled")
        with running(settings(shape) | {"compile": True, "checkpoint_every": 1000}, output) as process:
            started = seconds_until(lambda: steps(output), process)
            seconds_until(lambda: len(steps(output)) >= STEPS, process)
        step = median_step(steps(output)[UNTIMED_STEPS:])
    return [
        Figure(what="start of the command to the first step", value=started, unit="s"),
        Figure(what="median step", value=step, unit="s"),
        Figure(what="MFU, of the datasheet's dense bf16", value=utilization(shape, step), at_least=0.4),
    ]


if __name__ == "__main__":
    run(measure)
