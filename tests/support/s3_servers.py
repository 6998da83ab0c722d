"""Real S3 servers of directories, which list files that they did not write without an ETag: versitygw and rclone."""

import contextlib
import os
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_pipelines.local_run.embedded_s3 import CREDENTIALS
from support.go_programs import go_program

KEYS = CREDENTIALS["AWS_ACCESS_KEY_ID"], CREDENTIALS["AWS_SECRET_ACCESS_KEY"]
START_SECONDS = 30
RCLONE_VERSION, VERSITYGW_VERSION = "v1.75.1", "v1.8.0"
RCLONE = """package main

import (
	_ "github.com/rclone/rclone/backend/local"
	"github.com/rclone/rclone/cmd"
	_ "github.com/rclone/rclone/cmd/serve/s3"
)

func main() { cmd.Main() }
"""
"""All of rclone that the tests use: the whole takes many minutes to build."""


def built_rclone() -> Path:
    get = f"go get github.com/rclone/rclone@{RCLONE_VERSION}"
    return go_program("rclone", RCLONE_VERSION, ("go mod init rclone", get, "go build -o rclone ."), RCLONE)


def built_versitygw() -> Path:
    """Return the program of the test cluster, or build it."""
    of_cluster = Path(os.environ.get("CLUSTER_HOME", "/var/tmp/test-cluster"), "bin", "versitygw")
    if of_cluster.exists():
        return of_cluster
    install = f"go install github.com/versity/versitygw/cmd/versitygw@{VERSITYGW_VERSION}"
    return go_program("versitygw", VERSITYGW_VERSION, (install,))


@contextlib.contextmanager
def serving_directory(kind: str, root: Path) -> Iterator[str]:
    """Serve the folders of a directory as buckets and yield the URL."""
    (port,) = free_ports(1)
    address, log = f"127.0.0.1:{port}", root.with_name(f"{kind}.log")
    with log.open("wb") as output:
        server = subprocess.Popen(_command(kind, address, root), stdout=output, stderr=output)
    try:
        wait_until_open(port, server, log)
        yield f"http://{address}"
    finally:
        server.kill()
        server.wait()


def _command(kind: str, address: str, root: Path) -> Sequence[str]:
    if kind == "rclone":
        options = ("--etag-hash=", "--dir-cache-time=1ms", "--auth-key", ",".join(KEYS), "--addr", address)
        return (str(built_rclone()), "serve", "s3", *options, str(root))
    return (str(built_versitygw()), "--port", address, "--access", KEYS[0], "--secret", KEYS[1], "posix", str(root))


def wait_until_open(port: int, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text()}")


if __name__ == "__main__":
    print(built_rclone(), built_versitygw())
