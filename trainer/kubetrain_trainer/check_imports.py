"""Tries to import a task of your own before any data is moved.

python -m kubetrain_trainer.check_imports package.module:function

A module or function that is missing fails. Another error is only a warning: this pod has no GPU and no dataset, which
the module may need while it is imported.
"""

import sys
from functools import partial

from kubetrain_trainer.entry_point import run
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.import_path import load_function
from kubetrain_trainer.termination import report_result

WARNING = "warning: "


def check_imports(path: str) -> None:
    seen = _import(path)
    print(seen, flush=True)
    report_result({"status": "completed", "seen": {"task": seen}})


def _import(path: str) -> str:
    """Return what happened.

    Raises:
        InvalidSetting: if no pod could import it.
    """
    try:
        load_function(path)
    except KubetrainError:
        raise
    except SyntaxError as error:
        raise InvalidSetting(f"cannot import '{path}': {error}") from error
    except Exception as error:  # noqa: BLE001 - whatever the user's code may raise
        return f"{WARNING}importing '{path}' without GPU and dataset raised {type(error).__name__}: {error}"
    return f"'{path}' can be imported"


if __name__ == "__main__":
    run(partial(check_imports, *sys.argv[1:]))
