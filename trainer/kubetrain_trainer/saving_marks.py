"""Marks by which the processes of a pod tell their launcher that they are saving, so that it does not kill them.

Each mark is an empty file in a folder of the launcher.
"""

import contextlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

VARIABLE = "KUBETRAIN_SAVING_MARKS"
"""The environment variable with the folder. Without a launcher it is not set."""


@contextlib.contextmanager
def marked_as_saving() -> Iterator[None]:
    """Mark this process in this context."""
    mark = _mark(f"{os.getpid()}-{threading.get_native_id()}")
    try:
        yield
    finally:
        if mark:
            mark.unlink(missing_ok=True)


def mark_as_saving_until_exit() -> None:
    _mark(f"{os.getpid()}-exit")


def is_saving(folder: Path, process_id: int) -> bool:
    return any(folder.glob(f"{process_id}-*"))


def _mark(name: str) -> Path | None:
    folder = os.environ.get(VARIABLE)
    if not folder:
        return None
    with contextlib.suppress(OSError):  # a missing mark must not fail a save
        Path(folder, name).touch()
    return Path(folder, name)
