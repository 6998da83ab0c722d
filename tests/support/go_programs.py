"""Programs that a test builds from their Go modules, once on a machine: a minute or more on two cores."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "kubetrain-tests"
STATIC = {**os.environ, "CGO_ENABLED": "0"}
"""Environment of a build that also runs in an image without this machine's C library."""


def go_program(name: str, version: str, commands: Sequence[str], source: str = "") -> Path:
    """Return the program, which these commands make in its folder, beside a main.go with the source if there is one."""
    folder = CACHE / f"{name}-{version}-static"
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / name
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not program.exists():
            if not shutil.which("go"):
                pytest.skip(f"{name} is built with Go, which is not installed here")
            for file in ("go.mod", "go.sum"):  # of a build that was killed
                (folder / file).unlink(missing_ok=True)
            if source:
                (folder / "main.go").write_text(source)
            for command in commands:
                environment = {**STATIC, "GOBIN": str(folder)}
                done = subprocess.run(
                    command.split(), check=False, cwd=folder, env=environment, capture_output=True, text=True
                )
                assert done.returncode == 0, f"{command}: {done.stderr}"
    return program
