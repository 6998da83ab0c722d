"""metrics.jsonl, to which the training appends one JSON object per line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from kubetrain_trainer.durable_files import append, finite, write_all_atomically


class MetricsLog:
    def __init__(self, path: Path, resumed_step: int) -> None:
        """Continue from the resumed step. Rows after it are dropped, because they will be measured again."""
        write_all_atomically(path, (_line(row) for row in read_metrics(path) if row["step"] <= resumed_step))
        self._path = path

    def append(self, row: dict[str, Any]) -> None:
        append(self._path, _line(row))


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows, skipping damaged ones and a partial last one: a log must not keep a training from resuming."""
    if not path.is_file():
        return
    with path.open("rb") as lines:  # never all of them in memory: there may be millions
        yield from parse_rows(lines)


def parse_rows(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the rows, skipping damaged lines."""
    for line in lines:
        with contextlib.suppress(ValueError):
            row = json.loads(line)
            if isinstance(row, dict) and isinstance(row.get("step"), int):
                yield row


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(finite(row), allow_nan=False) + "\n").encode()
