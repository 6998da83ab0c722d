"""Requests to a process beside the training, which has what the training lacks: the store's client and credentials.

Each connection takes a request, one JSON object on a line, and gives one answer in the same form.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import KubetrainError

SOCKET = "socket"
"""The socket's name in the folder that the process serves."""
MAX_ADDRESS_BYTES = 100
"""Addresses of sockets are limited to 108 bytes, on some systems to 104."""
ABSENT_SECONDS, PAUSE_SECONDS = 300.0, 0.2


class StoreSilent(KubetrainError):
    """The store does not answer: a later start of the training may succeed."""

    is_curable = True


@contextlib.contextmanager
def answered(
    folder: Path, request: Mapping[str, Any], service: str, patience: float | None = None
) -> Iterator[Mapping[str, Any]]:
    """Yield the answer within its connection; ask again if the process beside the training restarts.

    Args:
        patience: The seconds to wait for an answer; None: minutes, and as long as the store is in trouble.

    Raises:
        StoreSilent: if nothing answers for minutes.
        KubetrainError: if the answer is an error.
    """
    deadline = time.monotonic() + (ABSENT_SECONDS if patience is None else patience)
    while True:
        with contextlib.ExitStack() as stack:
            try:
                connection = stack.enter_context(connected(folder, patience))
                connection.sendall(line_of(request))
                asked = time.monotonic()
                line = connection.makefile().readline()
                deadline += time.monotonic() - asked  # a store in trouble may delay the answer for minutes
            except OSError as error:
                line, cause = "", str(error)
            else:
                cause = "it ended"
            if line:
                answer = json.loads(line)
                if answer["error"]:
                    raise (StoreSilent if answer["is_curable"] else KubetrainError)(answer["error"])
                yield answer
                return
        if time.monotonic() > deadline:
            raise StoreSilent(f"nothing serves {service} {folder} ({cause}): see the log of the container beside it")
        time.sleep(PAUSE_SECONDS)


def line_of(request: Mapping[str, Any]) -> bytes:
    return json.dumps(request).encode() + b"\n"


@contextlib.contextmanager
def connected(folder: Path, timeout: float | None = None) -> Iterator[socket.socket]:
    with short_address(folder) as address, socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(timeout)
        connection.connect(address)
        yield connection


@contextlib.contextmanager
def short_address(folder: Path) -> Iterator[str]:
    """Yield a path of the folder's socket that is short enough for an address."""
    path = str(folder / SOCKET)
    if len(os.fsencode(path)) <= MAX_ADDRESS_BYTES:
        yield path
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield f"/proc/self/fd/{descriptor}/{SOCKET}"
    finally:
        os.close(descriptor)
