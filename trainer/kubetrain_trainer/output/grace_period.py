"""Whether a training can save within the time that its pod has after SIGTERM: pods.grace_seconds."""

from __future__ import annotations

import logging
import math
import os
from pathlib import Path
from typing import Any, Mapping

VARIABLE = "KUBETRAIN_GRACE_SECONDS"
"""The environment variable with this time. It is not set outside a cluster."""
SAVE = "previous_save"
"""The name in manifests of what is known of the save before: this one's time is known only when it is complete."""
_saves: dict[Path, dict[str, Any]] = {}
"""The last saves of this process, by the folder of their output."""
_warned: set[Path] = set()
log = logging.getLogger(__name__)


def note_save(output: Path, files: list[dict[str, Any]], seconds: float) -> None:
    """Note how long it took until the checkpoint was complete, also in a store."""
    _saves[output] = {"seconds": round(seconds, 3), "bytes": sum(file["size"] for file in files)}
    compare_save(output, _saves[output])


def last_save(output: Path) -> dict[str, Any]:
    return {SAVE: _saves[output]} if output in _saves else {}


def compare_save(output: Path, save: Mapping[str, Any]) -> None:
    """Warn once if two saves exceed the time: SIGTERM may come while one is written, and then the last one follows."""
    allowed, seconds = float(os.environ.get(VARIABLE, math.inf)), save["seconds"]
    if 2 * seconds > allowed and output not in _warned:
        _warned.add(output)
        log.warning(
            "saving a checkpoint of %.3g GB took %.0f s: after SIGTERM, the one being written and the last one may not "
            "both be complete within pods.grace_seconds=%.0f; set it to %d or more",
            save["bytes"] / 1e9,
            seconds,
            allowed,
            math.ceil(3 * seconds),
        )
