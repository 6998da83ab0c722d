"""How far a sync has come."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from kubetrain_trainer.reporting.progress_line import format_progress


@dataclass(frozen=True)
class SyncProgress:
    """The part of a version that has arrived."""

    objects: int
    bytes: int
    total_objects: int
    total_bytes: int
    unusable: int = 0
    """Number of keys that cannot be files; if there are any, the sync fails at the end."""
    is_resuming: bool = False
    """The files of an interrupted sync are being hashed again, and nothing is being downloaded yet."""


OnProgress = Callable[[SyncProgress], None]


def progress_printer() -> OnProgress:
    """Return a function that prints progress lines for the step that follows the transfer job."""
    last = 0.0

    def print_progress(progress: SyncProgress) -> None:
        nonlocal last
        if progress.objects == progress.total_objects or time.monotonic() - last >= 0.5:
            last = time.monotonic()
            objects = f"{progress.objects}/{progress.total_objects}"
            print(format_progress(objects=objects, bytes=progress.bytes), flush=True)

    return print_progress
