"""The processes of a local job's pods, and the duration of interruptions of a training."""

import contextlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from kubetrain_trainer.frameworks import package_of


def pod_processes(pod: str, output: Path) -> list[psutil.Process]:
    """Return the first process of the pod's container and its descendants, for the job with this output."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            marks = {name: value for name, value in process.environ().items() if name.startswith("KUBETRAIN_POD_")}
            if pod in marks.values() and str(output) in " ".join(process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


@dataclass(frozen=True)
class Pause:
    seconds: float
    output: str


def pause_until_next_step(run: "subprocess.Popen[str]") -> Pause:
    """Measure the time until the log has the first step after all processes have resumed."""
    began, seen = time.monotonic(), ""
    assert run.stdout is not None
    for line in run.stdout:
        seen += line
        if "[kubetrain] step=" in line and "resumes from" in seen:
            return Pause(time.monotonic() - began, seen)
    raise AssertionError(f"no step was logged:\n{seen}")


def import_seconds(framework: str) -> float:
    """Measure how long imports take in two processes at a time, including those of torchrun, if used."""
    trainer = f"{package_of(framework)}.train"
    began = time.monotonic()
    for module in ["torch.distributed.run", trainer] if framework == "pytorch" else [trainer]:
        command = [sys.executable, "-c", f"import os, {module}; os._exit(0)"]
        pair = [subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"}) for _ in range(2)]
        assert [process.wait() for process in pair] == [0, 0]
    return time.monotonic() - began
