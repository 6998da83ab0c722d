"""The events of a local run: JSON lines that its stages write and its progress display reads."""

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class EventLog:
    def __init__(self, path: Path) -> None:
        self.path = path

    def emit(self, stage: str, event: str, **details: Any) -> None:
        """Write a line in one call, because several processes may write."""
        line = json.dumps({"time": round(time.time(), 3), "stage": stage, "event": event, **details})
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode() + b"\n")
        finally:
            os.close(descriptor)


class EventReader:
    """Reads events that were added since the last read."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def new_events(self) -> Iterator[dict[str, Any]]:
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # incomplete
                self._offset += len(line)
                yield json.loads(line)
