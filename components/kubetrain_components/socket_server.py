"""The server of a process beside a training, which answers the requests of kubetrain_trainer.sidecar."""

import contextlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from socketserver import StreamRequestHandler, ThreadingMixIn, UnixStreamServer
from typing import Any

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.sidecar import SOCKET, line_of, short_address

Answer = Callable[[Mapping[str, Any]], AbstractContextManager[Mapping[str, Any] | None]]
"""Yields the answer to a request, and keeps what it needs until its connection ends; None: it needs no answer."""
SOCKET_MODE_IN_PODS = 0o666
"""The training container may run as another user."""


class Server(ThreadingMixIn, UnixStreamServer):
    daemon_threads = True
    request_queue_size = 128
    answer: Answer
    disk_problem: str
    name: str


class Handler(StreamRequestHandler):
    server: Server

    def handle(self) -> None:
        try:
            request = json.loads(self.rfile.readline())
        except (OSError, ValueError):  # the reader was killed
            return
        with contextlib.ExitStack() as stack:
            error, is_curable, answer = "", False, None
            try:
                answer = stack.enter_context(self.server.answer(request))
            except KubetrainError as cause:
                error, is_curable = str(cause), cause.is_curable
            except OSError as cause:
                error = f"cannot write to {self.server.name} ({cause.strerror}): {self.server.disk_problem}"
            except Exception as cause:  # noqa: BLE001 - without an answer, the reader would ask again and again
                error = f"{self.server.name} failed ({type(cause).__name__}: {cause})"
            if error or answer is not None:
                self._send({"error": error, "is_curable": is_curable, **(answer or {})})

    def _send(self, answer: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError):  # the reader was killed
            self.wfile.write(line_of(answer))
            self.rfile.read()  # until the reader, which has opened what it needs, closes the connection


@contextlib.contextmanager
def answering(folder: Path, answer: Answer, name: str, disk_problem: str, socket_mode: int) -> Iterator[None]:
    """Answer requests at the socket of this folder while the block runs.

    Args:
        name: What serves, for messages.
        disk_problem: What to do if the disk is full.
    """
    (folder / SOCKET).unlink(missing_ok=True)
    with short_address(folder) as address, Server(address, Handler) as server:
        (folder / SOCKET).chmod(socket_mode)
        server.answer, server.name, server.disk_problem = answer, name, disk_problem
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def serve_in_pod(serving: AbstractContextManager[str]) -> int:
    """Print what is being served, and serve until the pod ends. Return the exit code of a server that cannot start."""
    # The training is over, or will ask the process that replaces this one.
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    try:
        with serving as served:
            print(served, flush=True)
            threading.Event().wait()
    except KubetrainError as error:
        print(f"error: {error}", flush=True)
        return 1
    return 0
