"""The command line as users have it: a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

KUBETRAIN = str(Path(sys.executable).with_name("kubetrain"))
SOON_SECONDS = 20
"""Five are promised. What waits for a server or for its training takes longer than this, even if the machine stalls."""


@dataclass(frozen=True)
class Finished:
    exit_code: int
    output: str
    seconds: float


def kubetrain(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> Finished:
    began = time.monotonic()
    process = start(*arguments, cwd=cwd, **environment)
    output, _ = process.communicate()
    return Finished(process.returncode, output, time.monotonic() - began)


def start(*arguments: str | Path, cwd: Path | None = None, **environment: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [KUBETRAIN, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def read_until(process: "subprocess.Popen[str]", wanted: str) -> str:
    """The output up to the first line that has this text."""
    assert process.stdout is not None
    seen = ""
    for line in process.stdout:
        seen += line
        if wanted in line:
            return seen
    raise AssertionError(f"{wanted!r} never came:\n{seen}")


def interrupt(process: "subprocess.Popen[str]", with_signal: signal.Signals = signal.SIGINT) -> Finished:
    """As a terminal does: to the whole foreground process group."""
    began = time.monotonic()
    os.killpg(process.pid, with_signal)
    output, _ = process.communicate(timeout=90)
    return Finished(process.returncode, output, time.monotonic() - began)


def run_json(workspace: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((workspace / "run.json").read_text())
    return content


def processes_of(workspace: Path) -> list[psutil.Process]:
    """Whatever runs for this workspace: a step, a pod, the S3 server."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            place = f"{process.cmdline()} {process.environ()}"
        except psutil.Error:
            continue
        if str(workspace) in place and process.pid != os.getpid():
            found.append(process)
    return found
