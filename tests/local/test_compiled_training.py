"""Trainings with compile=true, which compile at their first step and never again."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow
COUNTING = """
from functools import partialmethod
from torch import nn
from torch._dynamo.utils import counters
from kubetrain_trainer.entry_point import run, training_arguments
from kubetrain_trainer.pytorch_ddp import train

# What is compiled, and when, is decided before this part, which would take a minute each time.
nn.Module.compile = partialmethod(nn.Module.compile, backend="eager")
take_step = train.take_step

def counted(*arguments):
    is_taken = take_step(*arguments)
    # In one piece, because a thread may print between several.
    print(f"graphs: {counters['stats']['unique_graphs']}\\n", end="", flush=True)
    return is_taken

train.take_step = counted
run(lambda: train.train(training_arguments("Train.")))
"""


@pytest.mark.parametrize("accumulate", [1, 3])
def test_nothing_is_compiled_after_the_first_step(accumulate: int, tmp_path: Path) -> None:
    """The last batch of each epoch is smaller, and so are its parts; a validation has batches of two sizes."""
    settings = {"data": "synthetic", "synthetic-samples": 71, "image-size": 8, "batch-size": 16, "epochs": 3}
    settings |= {"compile": "true", "checkpoint-every": 3, "metrics-port": 0, "accumulate": accumulate}
    flags = [part for name, value in settings.items() for part in (f"--{name}", str(value))]
    program = [sys.executable, "-c", COUNTING, "--data-dir", str(tmp_path), "--output-dir", str(tmp_path / "run")]
    trained = subprocess.run([*program, *flags], capture_output=True, text=True, check=False)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    first, *others = map(int, re.findall(r"graphs: (\d+)", trained.stdout))
    assert first >= 1
    assert others == [first] * 14, "three epochs of five steps"
