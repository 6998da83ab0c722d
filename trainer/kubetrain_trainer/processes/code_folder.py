"""The folders from which a process of ours imports your own code."""

from __future__ import annotations

import os
import sys
from pathlib import Path

VARIABLE = "KUBETRAIN_CODE"
"""The environment variable with the folder; not set if the code is in the image."""
SAFE_PATH = "PYTHONSAFEPATH"
"""The environment variable with which our programs start: a random.py in the working directory replaces no library."""


def enter_code_folder() -> None:
    """Make the folder of your own code the working directory. Import from it first, from any other one last."""
    os.environ.pop(SAFE_PATH, None)  # your own programs import what is beside them
    if folder := os.environ.get(VARIABLE):
        os.chdir(folder)
        sys.path.insert(0, folder)
        prepend("PYTHONPATH", folder)
    else:
        sys.path.append(str(Path.cwd()))


def prepend(variable: str, folder: str) -> None:
    """Let the processes that this one starts look into the folder first."""
    os.environ[variable] = os.pathsep.join(filter(None, (folder, os.environ.get(variable))))
