"""Hang in Python and in a kernel: the training must end itself, and name where it hangs."""

import tempfile
import time
from pathlib import Path
from typing import Any

from figures import Figure, run
from trainings import printed, running, seconds_until, steps

LIMIT_SECONDS = 10
NAMED = {"in Python": "wait_for_nothing (gpu/stuck.py:", "in a kernel": "it waits for its GPU"}


def measure(miniature: bool) -> list[Figure]:
    kinds = ["in Python"] if miniature else [*NAMED]
    return [figure for kind in kinds for figure in hang(kind)]


def hang(kind: str) -> list[Figure]:
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
    print(sentence, flush=True)
    return [
        Figure(what=f"hang {kind}: seconds to the end, of {LIMIT_SECONDS} allowed for a step", value=seconds, unit="s"),
        Figure(what=f"hang {kind}: named rightly (1) or not (0)", value=float(NAMED[kind] in sentence), at_least=1),
    ]


if __name__ == "__main__":
    run(measure)
