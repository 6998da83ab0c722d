"""Batches and outputs of any structure: their tensors change, their classes and everything else in them stay."""

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kubetrain_trainer.errors import KubetrainError


def to_device(value: Any, device: torch.device) -> Any:
    """Move the tensors, and objects that move themselves, such as the BatchEncoding of a tokenizer."""
    return map_movable(
        lambda part: part.to(device, non_blocking=True) if isinstance(part, Tensor) else part.to(device), value
    )


def map_movable(change: Callable[[Any], Any], value: Any) -> Any:
    """Return the value with `change` applied to each tensor and each object that moves itself."""
    return change(value) if hasattr(value, "to") else _map(lambda part: map_movable(change, part), value)


def map_tensors(change: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Return the value with `change` applied to each tensor in it."""
    return change(value) if isinstance(value, Tensor) else _map(lambda part: map_tensors(change, part), value)


def tensors_in(state: Any) -> Iterator[Tensor]:
    """Yield the tensors of a batch, or of a state that is saved."""
    if isinstance(state, Tensor):
        yield state
    else:
        for value in _items(state) or ():
            yield from tensors_in(value)


def with_tensors(state: Any, tensors: Iterable[Any]) -> Any:
    """Return a copy of the state, with these tensors, or what stands for them, in place of its own and with everything
    else that belongs to it, such as the versions in a state_dict."""
    return copy.deepcopy(state, {id(own): other for own, other in zip(tensors_in(state), tensors, strict=True)})


def outline(tensor: Tensor) -> Tensor:
    """Return a tensor of the same shape and kind without content, which takes no memory."""
    return torch.empty_like(tensor, device="meta")


def as_bytes(tensor: Tensor) -> Tensor:
    """Return the memory of a dense tensor: gloo does not send tensors of every kind, nor in every memory format."""
    return tensor.as_strided((math.prod(tensor.shape),), (1,)).view(torch.uint8)


def split(batch: Any, count: int, samples: int) -> list[Any]:
    """Split a batch of samples into about equal micro-batches, in order. Single values, such as a string, are in each.

    Raises:
        KubetrainError: if something in it does not belong to single samples.
    """
    if count == 1:
        return [batch]
    if _is_sliced(batch, samples):
        bounds = [samples * number // count for number in range(count + 1)]
        return [batch[first:last] for first, last in pairwise(bounds)]
    inner = _items(batch)
    if inner is not None:
        pieces = (split(part, count, samples) for part in inner)
        return [_rebuilt(batch, micro_batch) for micro_batch in zip(*pieces, strict=True)]
    if batch is None or isinstance(batch, int | float | str | bytes) or getattr(batch, "shape", None) == ():
        return [batch] * count
    described = f"a tensor of shape {tuple(batch.shape)}" if isinstance(batch, Tensor) else f"a {type(batch).__name__}"
    raise KubetrainError(
        f"train.gradient_accumulation cannot split {described} in a batch of {samples} samples: give each tensor one "
        "row for each sample, or set train.gradient_accumulation=1"
    )


def _is_sliced(value: Any, samples: int) -> bool:
    """Return True for a tensor with one row for each sample, and for a list with one value for each."""
    if hasattr(value, "shape"):
        return tuple(value.shape[:1]) == (samples,)
    # A list of several inputs, with all samples in each, may have as many items as there are samples.
    has_one_each = type(value) in (list, tuple) and len(value) == samples
    return has_one_each and not all(_is_sliced(part, samples) for part in value)


def _map(change: Callable[[Any], Any], value: Any) -> Any:
    """Return the structure with changed parts, or the same object if none of them changed."""
    inner = _items(value) or []
    changed = [change(part) for part in inner]
    has_changed = any(before is not after for before, after in zip(inner, changed, strict=True))
    return _rebuilt(value, changed) if has_changed else value


def _items(value: Any) -> list[Any] | None:
    """Return the parts of a structure, or None if the value is not one."""
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, list | tuple):
        return list(value)
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name) for field in fields(value)]
    return None


def _rebuilt(value: Any, parts: Any) -> Any:
    """Return a copy of the structure with other parts."""
    if isinstance(value, list | tuple):
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    changed = copy.copy(value)
    if isinstance(value, Mapping):
        for name, part in zip(value, parts, strict=True):
            changed[name] = part
    else:
        for field, part in zip(fields(value), parts, strict=True):
            object.__setattr__(changed, field.name, part)  # frozen dataclasses have no setter
    return changed
