"""Hang in Python and in a kernel: the training must end itself, and name where it hangs."""

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from figures import Figure, run
from trainings import printed, running, seconds_until, steps

LIMIT_SECONDS = 10
NAMED = {"in Python": "wait_for_nothing (gpu/stuck.py:", "in a kernel": "it waits for its GPU"}


def measure(miniature: bool) -> Iterator[Figure]:
    for kind in ["in Python"] if miniature else NAMED:
        sentence, seconds = hang(kind)
        print(sentence, flush=True)
        yield Figure(what=f"hang {kind}: time to the end, of {LIMIT_SECONDS} s for a step", value=seconds, unit="s")
        yield Figure(what=f"hang {kind}: named rightly (1) or not (0)", value=NAMED[kind] in sentence, at_least=1)


def hang(kind: str) -> tuple[str, float]:
    """Return what the training says of its hang, and after how long."""
    settings: dict[str, Any] = {
        "model": "stuck:build",
        "model_args": {"kind": kind},
        "max_steps": 50,
        "log_every": 1,
        "nccl_timeout_seconds": LIMIT_SECONDS,
        "metrics_port": 0,
    }
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder, "hang")
        with running(settings, output) as process:
            seconds_until(lambda: len(steps(output)) >= 2, process)
            began = time.monotonic()
            text = printed(process, expected=134)
            seconds = time.monotonic() - began
    [sentence] = [line for line in text.splitlines() if line.startswith("error: ")]
    return sentence, seconds


if __name__ == "__main__":
    run(measure)
