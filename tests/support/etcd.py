"""A real etcd 3.5, built once from its Go module, whose API v2 torchrun uses."""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from kubetrain_components.jobs.local.loopback import free_ports
from support.go_programs import go_program

VERSION = "v3.5.35"
PROGRAM = """package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
"""
"""The whole program: `go install` refuses the module, because it replaces others by folders of its repository."""
BUILD = ("go mod init etcd", f"go get go.etcd.io/etcd/server/v3@{VERSION}", "go build -o etcd .")


def built_etcd() -> Path:
    return go_program("etcd", VERSION, BUILD, PROGRAM)


class Etcd:
    """A server on a port of this machine, which can be killed and started again with its data, or without."""

    def __init__(self, program: Path, folder: Path, *flags: str) -> None:
        self._program, self._folder, self._flags = program, folder, flags
        self.port, self._peers = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._life = 0

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    def start(self, *, with_data: bool = True, protocol: str = "http") -> None:
        self._life += not with_data
        own, peers = f"{protocol}://{self.endpoint}", f"http://127.0.0.1:{self._peers}"
        command: Sequence[object] = (
            *(self._program, "--data-dir", self._folder / f"etcd-{self._life}", "--log-level", "error"),
            *("--listen-client-urls", own, "--advertise-client-urls", own),
            *("--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers),
            *("--initial-cluster", f"default={peers}", *self._flags),
        )
        self._process = subprocess.Popen(list(map(str, command)), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    @property
    def peak_memory(self) -> int:
        """The most memory that it had since it was started, in bytes."""
        assert self._process is not None
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


if __name__ == "__main__":
    print(built_etcd())
