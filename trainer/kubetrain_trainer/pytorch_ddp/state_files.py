"""The files of a checkpoint's state: one, or one for each process that holds a shard of it.

state.pt
state-00000-of-00002.pt, state-00001-of-00002.pt

Each process of a sharded training saves its shards of tensors, and any number of processes read what they need of all
files. A shard is saved as {"part": the values, "offsets": where they begin in the tensor, "shape": of the tensor}.
"""

import math
import pickle  # only for its exception class; nothing is unpickled
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from zipfile import is_zipfile

import torch
from torch import Tensor, nn

from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.unusable_files import foreign_error
from kubetrain_trainer.pytorch_ddp.sharding import is_dtensor
from kubetrain_trainer.pytorch_ddp.structures import tensors_in, with_tensors

STATE_FILE = "state.pt"
SHARD = {"part", "offsets", "shape"}


def shard_file(rank: int, processes: int) -> str:
    return f"state-{rank:05d}-of-{processes:05d}.pt"


def save_state(state: Any, path: Path) -> None:
    with path.open("wb") as file:  # if given a path, torch.save would hide why it cannot write
        torch.save(state, file)


def read_files(checkpoint: Path) -> list[Any]:
    """Return the state in each file, whose tensors are read when they are needed."""
    output_store.fetch(checkpoint)
    return [load_state(path, torch.device("cpu"), mmap=True) for path in _files(checkpoint)]


def _files(checkpoint: Path) -> list[Path]:
    """Return all files, whether or not a list of the folder is up to date."""
    one = next(checkpoint.glob("state-*-of-*.pt"), None)
    if one is None:
        return [checkpoint / STATE_FILE]
    processes = int(one.stem.rpartition("-")[2])
    return [checkpoint / shard_file(rank, processes) for rank in range(processes)]


def load_state(path: Path, device: torch.device, *, mmap: bool = False) -> Any:
    try:
        # weights_only rejects files that contain code. Only archives, which this trainer writes, can be mapped.
        return torch.load(path, map_location=device, weights_only=True, mmap=mmap and is_zipfile(path))
    except pickle.UnpicklingError as error:
        raise foreign_error(path) from error


def with_shards(state: Any) -> Any:
    """Return the state as this process saves it."""
    return with_tensors(state, (_shard(tensor) if is_dtensor(tensor) else tensor for tensor in tensors_in(state)))


def joined(states: Sequence[Any], like: Any = None) -> Any:
    """Return the state that these files hold together.

    Args:
        like: The tensors that it will replace, in the same structure. Of those that are sharded, only this process's
            shard is read. A tensor in place of an inner structure stands for all in it that have its shape.
    """
    first = states[0]
    if isinstance(first, Tensor):
        return _filled([([0] * first.ndim, first)], first.shape, like)
    if not isinstance(first, dict):
        return first
    if first.keys() == SHARD:
        return _filled([(shard["offsets"], shard["part"]) for shard in states], torch.Size(first["shape"]), like)
    inner = type(first)((name, joined([state[name] for state in states], _inner_tensors(like, name))) for name in first)
    if hasattr(first, "_metadata"):
        inner._metadata = first._metadata  # type: ignore[attr-defined]  # the versions of its modules
    return inner


@torch.no_grad()
def load_tensors(model: nn.Module, states: Sequence[Mapping[str, Any]]) -> None:
    """Load what these files hold of the model's state. Of a sharded model, no tensor but one is in memory twice."""
    own, others = model.state_dict(), OrderedDict[str, Any]()
    if hasattr(states[0], "_metadata"):
        others._metadata = states[0]._metadata  # type: ignore[attr-defined]  # the versions of its modules
    for name in states[0]:
        value = joined([state[name] for state in states], own.get(name))
        if is_dtensor(value):
            own[name].copy_(value)
        else:
            others[name] = value
    model.load_state_dict(others, strict=False)


def size_of(value: Any) -> int:
    """Return the size in bytes of a tensor of which a file has this shard, or all."""
    if isinstance(value, Tensor):
        return value.nbytes
    size: int = math.prod(value["shape"]) * value["part"].itemsize
    return size


def _shard(tensor: Any) -> dict[str, Any]:
    [chunk] = tensor.__create_chunk_list__()
    return {"part": tensor.to_local(), "offsets": [*chunk.offsets], "shape": [*tensor.shape]}


def _inner_tensors(like: Any, name: Any) -> Any:
    return like.get(name) if isinstance(like, Mapping) else like


def _filled(pieces: Sequence[tuple[Sequence[int], Tensor]], shape: torch.Size, like: Any) -> Tensor:
    if not is_dtensor(like) or like.shape != shape:
        first = pieces[0][1]
        return first if first.shape == shape else _box([0] * len(shape), shape, pieces)
    [chunk] = like.__create_chunk_list__()
    local = _box(chunk.offsets, chunk.sizes, pieces).to(like.device)
    filled: Tensor = type(like).from_local(
        local, like.device_mesh, like.placements, run_check=False, shape=shape, stride=like.stride()
    )
    return filled


def _box(offsets: Sequence[int], sizes: Sequence[int], pieces: Sequence[tuple[Sequence[int], Tensor]]) -> Tensor:
    """Return the values of the tensor from these offsets on."""
    box = torch.empty([*sizes], dtype=pieces[0][1].dtype)
    for begin, piece in pieces:
        bounds = [
            (max(a, b), min(a + size, b + length))
            for a, size, b, length in zip(offsets, sizes, begin, piece.shape, strict=True)
        ]
        if all(first < last for first, last in bounds):
            box[_slices(bounds, offsets)] = piece[_slices(bounds, begin)]
    return box


def _slices(bounds: Sequence[tuple[int, int]], offsets: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(first - offset, last - offset) for (first, last), offset in zip(bounds, offsets, strict=True))
