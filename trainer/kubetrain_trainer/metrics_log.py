"""metrics.jsonl, to which the training appends one JSON object per line."""

import contextlib
import json
from collections.abc import Iterator
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
    """Yield the rows, skipping a partial last line of a writer that was killed or is still writing."""
    if not path.is_file():
        return
    with path.open() as lines:  # never all of them in memory: there may be millions
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                yield json.loads(line)


def _line(row: dict[str, Any]) -> bytes:
    return (json.dumps(finite(row), allow_nan=False) + "\n").encode()
