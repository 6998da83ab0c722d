"""The events of a local run: JSON lines that its stages write and its progress display reads."""

import contextlib
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
    """Reads events that were added since the last read.

    A full disk cuts events off. Those are skipped, but every stage has a start.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._started: set[str] = set()

    def new_events(self) -> Iterator[dict[str, Any]]:
        for event in self._new_lines():
            if event["event"] != "started" and event["stage"] not in self._started:
                yield {"time": event["time"], "stage": event["stage"], "event": "started"}
            self._started.add(event["stage"])
            yield event

    def _new_lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.is_file():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n"):
                    return  # incomplete
                self._offset += len(line)
                with contextlib.suppress(ValueError):
                    yield json.loads(line)
