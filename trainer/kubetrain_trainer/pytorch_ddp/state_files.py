"""The files of a checkpoint's state: one, or one for each process that holds a part of it.

state.pt
state-00000-of-00002.pt, state-00001-of-00002.pt
"""

import pickle  # only for its exception class; nothing is unpickled
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch

from kubetrain_trainer.pytorch_ddp.state_parts import joined
from kubetrain_trainer.unusable_files import foreign_error

STATE_FILE = "state.pt"


def part_file(rank: int, processes: int) -> str:
    return f"state-{rank:05d}-of-{processes:05d}.pt"


def save_state(state: Any, path: Path) -> None:
    with path.open("wb") as file:  # if given a path, torch.save would hide why it cannot write
        torch.save(state, file)


def read_files(checkpoint: Path) -> list[Any]:
    """Return the state in each file, whose tensors are read when they are needed."""
    return [load_state(path, torch.device("cpu"), mmap=True) for path in _files(checkpoint)]


def _files(checkpoint: Path) -> list[Path]:
    """Return all files, whether or not a list of the folder is up to date."""
    one = next(checkpoint.glob("state-*-of-*.pt"), None)
    if one is None:
        return [checkpoint / STATE_FILE]
    processes = int(one.stem.rpartition("-")[2])
    return [checkpoint / part_file(rank, processes) for rank in range(processes)]


def whole_state(checkpoint: Path) -> Any:
    return joined(read_files(checkpoint))


def load_state(path: Path, device: torch.device, *, mmap: bool = False) -> Any:
    try:
        # weights_only rejects files that contain code. Only archives, which this trainer writes, can be mapped.
        return torch.load(path, map_location=device, weights_only=True, mmap=mmap and is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise foreign_error(path) from error
