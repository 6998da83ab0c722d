"""A process's last words: Kubernetes reads them from a file and shows them beside the exit code."""

import contextlib
import fcntl
import json
import multiprocessing
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

LOG_VARIABLE = "KUBETRAIN_TERMINATION_LOG"
"""Where the file is when it is not where Kubernetes puts it."""
MAXIMUM_BYTES = 4096
"""Kubernetes cuts off what is beyond."""
SENTENCE_LENGTH = 600  # fits whatever its characters take


def forget_last_words() -> None:
    """Those of processes that ran in this container before: torchrun starts new ones in the place of lost ones."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _write(b"")


def report_result(result: Mapping[str, Any]) -> None:
    """What a process that succeeded has to show for it; it has a "status"."""
    text = _json(result)
    if len(text) > MAXIMUM_BYTES:
        raise ValueError(f"a result of {len(text)} bytes would reach nobody: Kubernetes takes {MAXIMUM_BYTES}")
    _write(text)


def report_failure(sentence: str, *, curable: bool) -> None:
    """Why a process failed, and whether another try might help.

    The first of a pod's processes to say so is heard: the others fail by its failure.
    """
    words = {"status": "failed", "error": sentence[:SENTENCE_LENGTH], "curable": curable}
    _write(_json(words), only_first=True)


def leave_words(sentence: str) -> None:
    """For a person: Kubernetes shows them with the pod, Argo with the step."""
    _write(sentence.encode()[:MAXIMUM_BYTES])


def end_process(exit_code: int) -> NoReturn:
    """At once: taking libraries down in order takes seconds, and those that failed half-way hang or crash there."""
    for child in multiprocessing.active_children():
        child.kill()  # a process that loads data would outlive this one
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, RuntimeError):  # a full disk; a signal in the middle of a line
            stream.flush()
    os._exit(exit_code)


def parse_last_words(text: str) -> dict[str, Any]:
    """What a process reported; empty where it left nothing, or words that are not ours."""
    try:
        words = json.loads(text)
    except ValueError:
        return {}
    return words if isinstance(words, dict) else {}


def _json(words: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(words), sort_keys=True, ensure_ascii=False).encode()


def _write(words: bytes, *, only_first: bool = False) -> None:
    """In place: Kubernetes mounts the file itself. Outside a pod there is none, and nobody listens."""
    path = Path(os.environ.get(LOG_VARIABLE, "/dev/termination-log"))
    try:
        with path.open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if only_first and file.read():
                return
            file.seek(0)
            file.write(words)
            file.truncate()
    except OSError:
        pass  # last words are no reason to fail
