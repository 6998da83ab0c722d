"""Install what the image lacks of requirements.txt, once beside the outputs of the runs.

The image's own packages, such as its PyTorch, count as installed. pip reads its usual variables: PIP_INDEX_URL, or
PIP_NO_INDEX and PIP_FIND_LINKS for a folder of wheels.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.code_folder import prepend
from kubetrain_trainer.processes.process_role import ProcessRole

FOLDER = ".requirements"
"""Among the outputs of the runs."""
POLL_SECONDS = 0.5
PIP = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")
REMEDY = (
    "correct the file, or set pods.env so that pip finds the packages: PIP_INDEX_URL, or PIP_NO_INDEX=1 and "
    "PIP_FIND_LINKS for a folder of wheels"
)


def use_requirements(file: str, output: TrainingOutput, role: ProcessRole) -> None:
    """Let this process, and those that it starts, import the packages. Rank 0 installs them, the others wait.

    Raises:
        KubetrainError: if they cannot be installed.
    """
    if not file:
        return
    folder = output.path.parent / FOLDER / _digest(Path(file))
    if role.is_rank_0 and not folder.exists():
        _install(Path(file), folder)
    while not folder.exists():
        time.sleep(POLL_SECONDS)
    sys.path.insert(0, str(folder))
    prepend("PYTHONPATH", str(folder))
    prepend("PATH", str(folder / "bin"))


def check_requirements(file: str) -> None:
    """
    Raises:
        KubetrainError: if the packages could not be installed where this runs.
    """
    if not Path(file).is_file():
        raise InvalidSetting(f"train.requirements: there is no file '{file}' in {Path.cwd()}, where the training runs")
    _missing(Path(file))


def _digest(file: Path) -> str:
    """Return what decides which packages there are: the file, and the Python that runs them."""
    python = f"{platform.python_version()} {platform.machine()} {sys.prefix}\n"
    return hashlib.sha256(python.encode() + file.read_bytes()).hexdigest()[:16]


def _install(file: Path, folder: Path) -> None:
    missing = _missing(file)
    print(f"{file}: {', '.join(missing) or 'the image has all of it'}", flush=True)
    partial = folder.with_name(f".{folder.name}-{os.getpid()}")
    partial.mkdir(parents=True)
    try:
        if missing:
            _pip(file, "install", "--quiet", "--no-deps", "--target", str(partial), *missing)
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _missing(file: Path) -> list[str]:
    """Return what pip would install beside the packages that the image has."""
    planned = json.loads(_pip(file, "install", "--quiet", "--dry-run", "--report", "-", "--requirement", str(file)))
    return [_named(item) for item in planned["install"]]


def _named(item: dict[str, Any]) -> str:
    """Return the item of pip's report as a requirement."""
    name, source = item["metadata"]["name"], item["download_info"]
    if not item["is_direct"]:
        return f"{name}=={item['metadata']['version']}"
    if repository := source.get("vcs_info"):
        return f"{name} @ {repository['vcs']}+{source['url']}@{repository['commit_id']}"
    return f"{name} @ {source['url']}"


def _pip(file: Path, *arguments: str) -> str:
    ended = subprocess.run([*PIP, *arguments], capture_output=True, text=True, check=False)
    if ended.returncode:
        said = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
        raise KubetrainError(f"train.requirements: pip cannot install {file}: {said[-1]}; {REMEDY}")
    return ended.stdout
