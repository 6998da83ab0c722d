"""Steps of a transformer so small that the CPU cannot keep up: compiled, and repeated by the GPU as a whole."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, run
from language_model import Shape
from trainings import rate, steps, train
from transformer import TINY, settings

SMALL = Shape(layers=6, width=256, heads=4, vocabulary=1024, context=128)
BATCH, UNTIMED_STEPS, STEPS = 16, 100, 400


def measure(miniature: bool) -> Iterator[Figure]:
    shape = TINY if miniature else SMALL
    count = STEPS // 20 if miniature else STEPS
    for mode in ("default", "reduce-overhead"):
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder, "transformer")
            train(settings(shape, BATCH, count) | {"compile": mode, "log_every": 10}, output)
            step = BATCH / rate(output, UNTIMED_STEPS * count // STEPS)
            yield Figure(what=f"compile={mode}: step", value=step, unit="s")
            yield Figure(what=f"compile={mode}: last loss", value=steps(output)[-1]["loss"])


if __name__ == "__main__":
    run(measure)
