"""A virtual environment with the packages of one extra and nothing else, which are linked, not installed again."""

import re
import subprocess
import sys
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

from packaging.requirements import Requirement


def bare_environment(folder: Path, extra: str, wheel: Path) -> Path:
    """Return the Python of an environment in which `pip install 'WHEEL[EXTRA]'` was run."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    python, linked = folder / "bin" / "python", folder / "linked"
    command = [sys.executable, "-m", "pip", "--python", python, "--quiet", "--disable-pip-version-check"]
    subprocess.run([*command, "install", "--no-deps", "--no-index", wheel], check=True)
    linked.mkdir()
    for package in _packages_of(extra):
        _link(package, linked)
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "linked.pth").write_text(f"{linked}\n")
    return python


def _packages_of(extra: str) -> list[Distribution]:
    """Return the packages of an extra of kubetrain, with those that they require."""
    found: dict[str, Distribution] = {}
    waiting = [each for each in _requirements("kubetrain", extra) if each not in _requirements("kubetrain", "")]
    while waiting:
        name = waiting.pop()
        if name not in found and (installed := _installed(name)):
            found[name] = installed
            waiting += _requirements(name, "")
    return list(found.values())


def _requirements(name: str, extra: str) -> list[str]:
    installed = _installed(name)
    required = map(Requirement, (installed.requires or []) if installed else [])
    chosen = (each.name for each in required if each.marker is None or each.marker.evaluate({"extra": extra}))
    return [re.sub(r"[-_.]+", "-", name).lower() for name in chosen]


def _installed(name: str) -> Distribution | None:
    try:
        return distribution(name)
    except PackageNotFoundError:
        return None


def _link(package: Distribution, folder: Path) -> None:
    for top in {file.parts[0] for file in package.files or []} - {"..", "__pycache__"}:
        if not (folder / top).exists():
            (folder / top).symlink_to(Path(str(package.locate_file(top))))
