"""Tries to import a task of your own before any data is moved.

python -m kubetrain_trainer.check_imports package.module:function

It reports one sentence. A module or function that is missing is an error. Anything else that goes wrong is a warning:
this pod has no GPU and no dataset, which the module may need while it is imported.
"""

import sys
from functools import partial

from kubetrain_trainer.entry_point import SENTENCE_LENGTH, run
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.import_path import load_function
from kubetrain_trainer.termination import report_result

ERROR, WARNING = "error: ", "warning: "


def check_imports(path: str) -> None:
    seen = _import(path)
    print(seen, flush=True)
    report_result({"status": "completed", "seen": {"task": seen}})


def _import(path: str) -> str:
    try:
        load_function(path)
    except KubetrainError as error:
        return f"{ERROR}{_short(error)}"
    except SyntaxError as error:
        return f"{ERROR}cannot import '{path}': {_short(error)}"
    except Exception as error:  # noqa: BLE001 - whatever the user's code may raise
        return f"{WARNING}importing '{path}' without GPU and dataset raised {type(error).__name__}: {_short(error)}"
    return f"'{path}' can be imported"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:SENTENCE_LENGTH]


if __name__ == "__main__":
    run(partial(check_imports, *sys.argv[1:]))
