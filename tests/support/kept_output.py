"""Pods of a test: each has a disk of its own, and a sidecar that keeps its output in a store."""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from kubetrain_trainer.output.output_store import VARIABLE


class PodDisk:
    """A folder that a real sidecar keeps in the store."""

    def __init__(self, root: Path, uri: str, endpoint: str) -> None:
        self.root, self._uri, self._endpoint = root, uri, endpoint
        root.mkdir()
        self.sidecar = self._start()

    @property
    def variables(self) -> dict[str, str]:
        return {VARIABLE: str(self.root)}

    def kill(self) -> None:
        self.sidecar.kill()
        self.sidecar.communicate()

    def restart(self) -> None:
        self.kill()
        self.sidecar = self._start()

    def _start(self) -> "subprocess.Popen[str]":
        command = [sys.executable, "-m", "kubetrain_components.keep_output.serve", "--uri", self._uri]
        command += ["--endpoint", self._endpoint, "--to", str(self.root)]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


@contextlib.contextmanager
def pod_disk(root: Path, uri: str, endpoint: str) -> Iterator[PodDisk]:
    disk = PodDisk(root, uri, endpoint)
    try:
        yield disk
    finally:
        disk.kill()
