"""A check that loading processes can get the samples. It is made without such processes too, such as on a laptop."""

import io
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.context import set_spawning_popen
from multiprocessing.reduction import ForkingPickler
from types import SimpleNamespace
from typing import Any

import numpy as np
from torch import Tensor

from kubetrain_trainer.errors import KubetrainError

CONTENTS = (Tensor, str, bytes, int, float)
"""Classes that can always be sent. They are left out, because a copy of them may take gigabytes."""
STARTING: Any = SimpleNamespace(DupFd=int, duplicate_for_child=int)
"""A stand-in for a process that multiprocessing starts, which can be given open files."""


def check_sendable(name: str, value: Any) -> None:
    """Check that the value can be pickled.

    Raises:
        KubetrainError: naming the object in it that cannot.
    """
    error = _error_of(value)
    if error is None:
        return
    place, culprit, error = _deepest(name, value, error, seen=set())
    what = getattr(culprit, "__qualname__", f"a {type(culprit).__name__}")
    raise KubetrainError(
        f"{place} ({what}) cannot be sent to the processes that load samples on a machine with GPUs ({error}): replace "
        "it by a function or class at the top of a module, or set train.loader_workers=0"
    )


def _deepest(name: str, value: Any, error: Exception, seen: set[int]) -> tuple[str, Any, Exception]:
    """Return the innermost object that cannot be pickled, with its place and the error."""
    seen.add(id(value))
    for place, inner in _inner(name, value):
        if id(inner) not in seen and (inner_error := _error_of(inner)):
            return _deepest(place, inner, inner_error, seen)
    return name, value, error


def _inner(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((f"{name}[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"{name}[{index}]", inner) for index, inner in enumerate(value))
    elif not isinstance(value, type):
        yield from ((f"{name}.{attribute}", inner) for attribute, inner in getattr(value, "__dict__", {}).items())


def _error_of(value: Any) -> Exception | None:
    try:
        with _spawning_allowed():
            _Trial(_Void()).dump(value)
    except Exception as error:  # noqa: BLE001 - any object decides what it raises
        return error
    return None


@contextmanager
def _spawning_allowed() -> Iterator[None]:
    """Allow what only a process that starts may get, such as multiprocessing.Value."""
    set_spawning_popen(STARTING)
    try:
        yield
    finally:
        set_spawning_popen(None)


class _Trial(ForkingPickler):
    def persistent_id(self, value: Any) -> str | None:
        is_content = isinstance(value, CONTENTS) or (isinstance(value, np.ndarray) and value.dtype != object)
        return "" if is_content else None


class _Void(io.RawIOBase):
    def write(self, content: Any) -> int:
        return len(content)
