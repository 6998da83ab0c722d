"""A process's last words: Kubernetes reads them from a file and shows them beside the exit code."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG_VARIABLE = "KUBETRAIN_TERMINATION_LOG"
"""Where the file is when it is not where Kubernetes puts it."""
MAXIMUM_BYTES = 4096
SENTENCE_LENGTH = 600  # fits whatever its characters take


def report_result(result: Mapping[str, Any]) -> None:
    """What a process that succeeded has to show for it; it has a "status"."""
    _write(json.dumps(dict(result), sort_keys=True))


def report_failure(sentence: str, *, curable: bool) -> None:
    """Why a process failed, and whether another try might help.

    The first of a pod's processes to say so is heard: the others fail by its failure.
    """
    if not _read():
        words = {"status": "failed", "error": sentence[:SENTENCE_LENGTH], "curable": curable}
        _write(json.dumps(words, ensure_ascii=False))


def parse_last_words(text: str) -> dict[str, Any]:
    """What a process reported; empty where it left nothing, or words that are not ours."""
    try:
        words = json.loads(text)
    except ValueError:
        return {}
    return words if isinstance(words, dict) else {}


def _path() -> Path:
    return Path(os.environ.get(LOG_VARIABLE, "/dev/termination-log"))


def _read() -> str:
    try:
        return _path().read_text()
    except OSError:
        return ""


def _write(text: str) -> None:
    try:
        if _path().is_file():
            _path().write_bytes(text.encode()[:MAXIMUM_BYTES])
    except OSError:
        pass  # outside a pod nobody listens, and last words are no reason to fail
