"""metrics.jsonl: one JSON object a line, appended while the training runs."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubetrain_trainer.durable_files import append, finite, write_atomically


class MetricsLog:
    def __init__(self, path: Path, resumed_step: int) -> None:
        """Go on from the resumed step: what a killed run wrote after it is about to be measured again."""
        kept = [row for row in read_metrics(path) if row["step"] <= resumed_step]
        write_atomically(path, b"".join(_line(row) for row in kept))
        self._path = path

    def append(self, row: dict[str, Any]) -> None:
        append(self._path, _line(row))


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Every whole line; a torn last one, of a writer that was killed or is at it, is passed over."""
    if not path.is_file():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(finite(row), allow_nan=False) + "\n").encode()
