"""The versions of what a training ran with, which are published with its model."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version

COMMIT_VARIABLE = "KUBETRAIN_COMMIT"
"""The environment variable with the git commit of your own code: set it in your image."""
VERSION_VARIABLE = "KUBETRAIN_VERSION"
"""The environment variable with the version in kubetrain's images, where it is not installed as a package."""
PACKAGES = {"pytorch": ("torch", "torchvision"), "tensorflow": ("tensorflow", "tensorflow-cpu", "keras")}


def provenance(framework: str) -> dict[str, object]:
    """Return the versions of Python, kubetrain and the framework, and the commit if it is known."""
    installed = {name: found for name in PACKAGES.get(framework, ()) if (found := _version(name))}
    kubetrain = os.environ.get(VERSION_VARIABLE) or _version("kubetrain")
    versions = {"python": platform.python_version(), "kubetrain": kubetrain, **installed}
    return {"versions": versions, "commit": os.environ.get(COMMIT_VARIABLE, "")}


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
