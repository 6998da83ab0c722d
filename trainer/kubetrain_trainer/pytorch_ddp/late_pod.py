"""A pod that comes when the training is complete and the others have ended: alone, it only reports the result.

The success of a job is that of its first pod, without which the others may have completed the training.
"""

import argparse
import contextlib
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.training_output import TrainingOutput


def is_late(script_arguments: Sequence[str]) -> bool:
    """Return True if the output folder of these arguments of the trainer has a result."""
    with contextlib.suppress(KubetrainError):  # the training itself reports a file that cannot be read
        folders = [value for flag, value in pairwise(script_arguments) if flag == "--output-dir"]
        return any(TrainingOutput(Path(folder)).is_finished() for folder in folders)
    return False


def run_alone(parsed: argparse.Namespace) -> None:
    """Change the arguments of torchrun so that one process runs, which meets no other."""
    parsed.standalone, parsed.nnodes, parsed.nproc_per_node = True, "1", "1"
    parsed.rdzv_backend, parsed.rdzv_conf = "c10d", ""
