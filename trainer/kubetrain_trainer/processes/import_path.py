"""Loading of users' own tasks and pipelines, given as package.module:function."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import InvalidSetting, did_you_mean


def load_function(path: str, folder: Path | None = None) -> Any:
    """Import the function.

    Args:
        folder: A folder that may have its module, and whose files replace no library; None: the working directory.

    Raises:
        InvalidSetting: if the module or the function does not exist.
    """
    module_name, _, function = path.partition(":")
    place = str(folder or Path.cwd())
    if place not in sys.path:
        sys.path.append(place)
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"cannot import '{module_name}' of '{path}' ({error}): "
            "start from the folder that holds the package, set PYTHONPATH, or install it in the image"
        ) from error
    except SyntaxError as error:
        raise InvalidSetting(f"cannot import '{path}': {error}") from error
    if not hasattr(module, function):
        public = [name for name in dir(module) if not name.startswith("_")]
        raise InvalidSetting(f"module '{module_name}' has no function '{function}': {did_you_mean(function, public)}")
    return getattr(module, function)
