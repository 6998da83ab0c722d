"""Loading of users' own tasks and pipelines, given as package.module:function."""

import importlib
import sys
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import InvalidSetting, did_you_mean


def load_function(path: str) -> Any:
    """Import the function. Its module may be in the working directory, whose files replace no library.

    Raises:
        InvalidSetting: if the module or the function does not exist.
    """
    module_name, _, function = path.partition(":")
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
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
