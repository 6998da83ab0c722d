"""package.module:function, the way by which users bring a task or a pipeline of their own."""

import importlib
import sys
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import InvalidSetting, did_you_mean


def load_function(path: str) -> Any:
    """Import what the path names. The working directory counts, as it does for `python -m`.

    Raises:
        InvalidSetting: where there is no such module or function.
    """
    module_name, _, function = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise InvalidSetting(
            f"cannot import '{module_name}' of '{path}' ({error}): "
            "start from the folder that holds the package, set PYTHONPATH, or install it in the image"
        ) from error
    if not hasattr(module, function):
        public = [name for name in dir(module) if not name.startswith("_")]
        raise InvalidSetting(f"module '{module_name}' has no function '{function}': {did_you_mean(function, public)}")
    return getattr(module, function)
