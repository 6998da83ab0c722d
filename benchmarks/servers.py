"""The S3 servers: the real `rclone serve s3`, and the stub. Both stop at the end of their `with` block."""

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

STUB = Path(__file__).with_name("stub_server.py")
START_SECONDS = 120  # the stub renders a million objects first


@contextmanager
def rclone_server(rclone: str, folder: Path, environment: Mapping[str, str]) -> Iterator[str]:
    """Serve a folder, whose subfolders are buckets, and return the endpoint."""
    port = _free_port()
    # Keep hashes as long as the folder's cache, so none is computed during a measurement.
    command = [rclone, "serve", "s3", f"--addr=127.0.0.1:{port}", "--dir-cache-time=24h", str(folder)]
    # The option takes a CSV list of pairs, so the pair is quoted.
    keys = f'"{environment["AWS_ACCESS_KEY_ID"]},{environment["AWS_SECRET_ACCESS_KEY"]}"'
    with _running(command, port, {**environment, "RCLONE_AUTH_KEY": keys}):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def stub_server(options: Sequence[str]) -> Iterator[str]:
    port = _free_port()
    with _running([sys.executable, str(STUB), f"--port={port}", *options], port, os.environ):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def _running(command: Sequence[str], port: int, environment: Mapping[str, str]) -> Iterator[None]:
    server = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        _wait_until_reachable(server, port)
        yield
    finally:
        with suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()


def _wait_until_reachable(server: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return
        time.sleep(0.05)
    raise SystemExit(f"{server.args} did not start")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
