"""The termination message of a process, which Kubernetes reads from a file and shows with the exit code."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import io
import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

LOG_VARIABLE = "KUBETRAIN_TERMINATION_LOG"
"""The environment variable with the file's path, if it is not Kubernetes' default."""
MAX_BYTES = 4096
"""Kubernetes truncates longer messages."""
SENTENCE_LENGTH = 600  # fits even if every character is encoded in several bytes
_before_end: list[Callable[[int], None]] = []


def clear_termination_message() -> None:
    """Clear the message of earlier processes in this container, because torchrun may have restarted failed ones."""
    if os.environ.get("LOCAL_RANK", "0") == "0":
        _write(b"")


def report_result(result: Mapping[str, Any]) -> None:
    """Write the result, with its "status", of a process that succeeded or was stopped."""
    text = _json(result)
    if len(text) > MAX_BYTES:
        raise ValueError(f"a result of {len(text)} bytes is too long: Kubernetes reads only {MAX_BYTES}")
    _write(text)


def report_failure(sentence: str, *, curable: bool, avoid_nodes: Sequence[str] = ()) -> None:
    """Write why a process failed, and whether a retry might help.

    Only the first failure in a pod is kept, because it makes the pod's other processes fail.

    Args:
        avoid_nodes: Nodes without which another attempt might succeed; as many as the message has room for are kept.
    """
    message = failure_message(sentence, curable=curable)
    nodes = [*avoid_nodes]
    while nodes and len(_json({**message, "avoid_nodes": nodes})) > MAX_BYTES:
        nodes.pop()
    _write(_json({**message, "avoid_nodes": nodes} if nodes else message), only_first=True)


def report_incurable(why: str) -> None:
    """Add to the failure of this pod why no restart can cure it."""
    error = parse_termination_message(read_termination_message()).get("error", "a process failed")
    clear_termination_message()
    report_failure(f"{error}; {why}", curable=False)


def failure_message(sentence: str, *, curable: bool) -> dict[str, Any]:
    """Return the message of a process that failed."""
    return {"status": "failed", "error": _printable(sentence)[:SENTENCE_LENGTH], "curable": curable}


def write_termination_message(sentence: str) -> None:
    """Write a message for users, which Kubernetes shows with the pod and Argo with the step."""
    _write(_printable(sentence).encode()[:MAX_BYTES])


def end_process(exit_code: int) -> NoReturn:
    """Exit at once, because a regular shutdown of the libraries takes seconds and may hang or crash after a failure."""
    for child in multiprocessing.active_children():
        child.kill()  # otherwise data loading processes would outlive this one
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, RuntimeError):  # the disk is full, or a signal interrupted a write
            stream.flush()
    act_before_end(exit_code)
    os._exit(exit_code)


def call_before_end(act: Callable[[int], None]) -> None:
    """Call this with the exit code before this process ends, even by end_process(). It may be called twice."""
    _before_end.append(act)
    atexit.register(act, 0)


def act_before_end(exit_code: int) -> None:
    for act in _before_end:
        with contextlib.suppress(Exception):
            act(exit_code)


def end_without_teardown(succeeded: threading.Event) -> None:
    """After a success, let the process end once the exit handlers of the libraries loaded from now on have run.

    Python would then destroy what the libraries hold, and gloo's threads may abort the process when they drop a tensor:
    a training that has succeeded would fail.
    """

    def end() -> None:
        if succeeded.is_set():
            _flush_open_files()
            end_process(0)

    atexit.register(end)


def _flush_open_files() -> None:
    """Write what libraries and modules have in the buffers of files that they leave open, as Python's end does."""
    opened = gc.get_objects()
    for kind in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
        for file in (candidate for candidate in opened if type(candidate) is kind):
            with contextlib.suppress(OSError, ValueError, RuntimeError):
                file.flush()


def parse_termination_message(text: str) -> dict[str, Any]:
    """Return what a process reported, or an empty dict if a kubetrain process did not write the message."""
    if not text:  # asked every second for every pod
        return {}
    try:
        message = json.loads(text)
    except (ValueError, RecursionError):  # anything may stand there, such as thousands of brackets
        return {}
    return message if isinstance(message, dict) else {}


def is_incurable(text: str) -> bool:
    """Return True if this message reports an error that no restart can cure."""
    words = parse_termination_message(text)
    return words.get("status") == "failed" and not words.get("curable", True)


def read_termination_message() -> str:
    """Return what the processes of this pod reported; empty if they reported nothing."""
    with contextlib.suppress(OSError, UnicodeDecodeError):
        return _path().read_text()
    return ""


def _printable(text: str) -> str:
    """Return the text with what it has of a file's name that is not UTF-8 written as \\udcff."""
    return text.encode(errors="backslashreplace").decode()


def _json(message: Mapping[str, Any]) -> bytes:
    return json.dumps(dict(message), sort_keys=True, ensure_ascii=False).encode()


def _path() -> Path:
    return Path(os.environ.get(LOG_VARIABLE, "/dev/termination-log"))


def _write(message: bytes, *, only_first: bool = False) -> None:
    """Write the file in place, because Kubernetes mounts it. Outside a pod the file is missing; then write nothing."""
    try:
        with _path().open("r+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if only_first and file.read():
                return
            file.seek(0)
            file.write(message)
            file.truncate()
    except OSError:
        pass  # a missing message must not fail the process
