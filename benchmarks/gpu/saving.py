"""Save, stop and resume a transformer of 218 million parameters with AdamW, a state of 2.6 GB."""

import resource
import statistics
import tempfile
from collections.abc import Iterator
from pathlib import Path

from figures import Figure, run
from language_model import Shape
from trainings import saves, steps, stop_and_resume
from transformer import TINY, settings

BATCH, CHECKPOINT_EVERY, STOP_AFTER, STEPS = 8, 200, 410, 420
"""A checkpoint is skipped while the one before is being written, which took as long as 100 steps on an H200."""
HOST_STALL, GPU_STALL = "checkpoint_stall_seconds", "checkpoint_gpu_stall_seconds"


def measure(miniature: bool) -> Iterator[Figure]:
    shape = TINY if miniature else Shape(layers=12, width=1024, heads=16)
    chosen = settings(shape, BATCH, STEPS) | {"checkpoint_every": CHECKPOINT_EVERY, "validate_every": 10 * STEPS}
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "transformer")
        _, stop, resumed = stop_and_resume(chosen, output, STOP_AFTER)
        yield Figure(what="SIGTERM to the end, with everything saved", value=stop, unit="s")
        yield Figure(what="start of the command to the first step after the stop", value=resumed, unit="s")
        first, second, *_ = saves(output)
        yield Figure(what="first save, which allocates: the host waits", value=first[HOST_STALL], unit="s")
        yield Figure(what="next save: the host waits", value=second[HOST_STALL], unit="s")
        stalls = [row[GPU_STALL] for row in steps(output) if GPU_STALL in row]
        yield Figure(what="longest time that the GPU waits for its copies", value=max(stalls, default=0.0), unit="s")
        times = [BATCH / row["samples_per_second"] for row in steps(output)]
        step = statistics.median(times)
        yield Figure(what="median step", value=step, unit="s")
        after = times[second["step"] : second["step"] + 3]
        yield Figure(what="longest of three steps after it, less the median", value=max(after) - step, unit="s")
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e6
        yield Figure(what="most memory of a process on the host", value=peak, unit="GB")


if __name__ == "__main__":
    run(measure)
