"""NCCL's log. Each process has it in a file of the launch program, which prints its warnings.

NCCL logs how processes are connected only with NCCL_DEBUG=INFO, in hundreds of lines, and writes warnings to the same
place. The launch program outlives the processes, so that it prints the last words of a killed one too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path

SUBSYSTEMS = "INIT,NET,GRAPH"
"""The subsystems that log transports, interfaces, and whether NVLink connects GPUs."""
FILES = "nccl-"
OWN_FILE = "NCCL_DEBUG_FILE"
"""The environment variable with the path, in which NCCL replaces %p with the ID of the process."""
WARNING = " NCCL WARN "
POLL_SECONDS = 0.5
DEFAULTS: tuple[dict[str, str], ...] = ({}, {"NCCL_DEBUG": "WARN"})
"""What is set if you did not choose what NCCL logs: nothing, or what `network` sets."""


def read_own_log() -> str:
    """Return what NCCL has logged in this process; empty if it logs elsewhere."""
    path = Path(os.environ.get(OWN_FILE, "").replace("%p", str(os.getpid())))
    return path.read_text(errors="replace") if path.is_file() else ""


def log_to_files(folder: Path) -> None:
    """Let the processes of this pod log to files in this folder, unless you chose what NCCL logs."""
    if {name: value for name, value in os.environ.items() if name.startswith("NCCL_DEBUG")} in DEFAULTS:
        os.environ.update({"NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": SUBSYSTEMS, OWN_FILE: str(folder / f"{FILES}%p")})


class WarningPrinter:
    """A context manager that prints the warnings in these files as they are written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._positions: dict[Path, int] = {}
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="nccl-warnings", daemon=True)

    def __enter__(self) -> WarningPrinter:
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._is_over.set()
        self._thread.join()

    def _follow(self) -> None:
        while not self._is_over.wait(POLL_SECONDS):
            self._print_new()
        self._print_new()

    def _print_new(self) -> None:
        for path in sorted(self._folder.glob(f"{FILES}*")):
            for line in self._new_lines(path):
                if WARNING in line:
                    print(line, end="", flush=True)

    def _new_lines(self, path: Path) -> Iterator[str]:
        with path.open("rb") as file:
            file.seek(self._positions.get(path, 0))
            for line in file:
                if line.endswith(b"\n"):
                    self._positions[path] = file.tell()
                    yield line.decode(errors="replace")
