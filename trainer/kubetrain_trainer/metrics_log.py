"""metrics.jsonl, to which the training appends one JSON object per line."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kubetrain_trainer.durable_files import append, finite, write_atomically


class MetricsLog:
    def __init__(self, path: Path, resumed_step: int) -> None:
        """Continue from the resumed step. Rows after it are dropped, because they will be measured again."""
        kept = [row for row in read_metrics(path) if row["step"] <= resumed_step]
        write_atomically(path, b"".join(_line(row) for row in kept))
        self._path = path

    def append(self, row: dict[str, Any]) -> None:
        append(self._path, _line(row))


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows, skipping a partial last line of a writer that was killed or is still writing."""
    if not path.is_file():
        return
    for line in path.read_text().splitlines():
        try:
            yield json.loads(line)
        except json.JSONDecodeError:
            continue


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(finite(row), allow_nan=False) + "\n").encode()
