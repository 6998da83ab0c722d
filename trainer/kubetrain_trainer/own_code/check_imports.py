"""Tries a task, script or command of your own before any data is moved.

python -m kubetrain_trainer.own_code.check_imports --framework pytorch --model package.module:function

It reports one sentence. A module, function, script or program that is missing is an error. Anything else that goes
wrong is a warning: this pod has no GPU and no dataset, which the module may need while it is imported.
"""

from __future__ import annotations

import argparse

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.own_code.check_model import check_writes_model, texts_here
from kubetrain_trainer.own_code.check_script import check_entry
from kubetrain_trainer.processes.entry_point import SENTENCE_LENGTH, run
from kubetrain_trainer.processes.import_path import load_function
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.entry import parse_entry
from kubetrain_trainer.termination import report_result

ERROR, WARNING = "error: ", "warning: "


def check_imports(framework: str, config: TrainConfig) -> None:
    seen = _try(framework, config)
    print(seen, flush=True)
    report_result({"status": "completed", "seen": {"task": seen}})


def _try(framework: str, config: TrainConfig) -> str:
    entry = parse_entry(config.entry)
    tried = entry.name if entry else config.model
    try:
        if entry:
            can_start = check_entry(entry, framework, config.requirements)
            return next((f"{WARNING}{said}" for said in check_writes_model(config, texts_here(entry))), can_start)
        load_function(config.model)
    except KubetrainError as error:
        return f"{ERROR}{_short(error)}"
    except SyntaxError as error:
        return f"{ERROR}cannot import '{tried}': {_short(error)}"
    except Exception as error:  # noqa: BLE001 - the user's code may raise anything
        return f"{WARNING}importing '{tried}' without GPU and dataset raised {type(error).__name__}: {_short(error)}"
    return f"'{tried}' can be imported"


def _short(error: Exception) -> str:
    return " ".join(str(error).split())[:SENTENCE_LENGTH]


def _arguments() -> tuple[str, TrainConfig]:
    parser = argparse.ArgumentParser(description="Try to import code of your own.", allow_abbrev=False)
    parser.add_argument("--framework", required=True)
    TrainConfig.add_flags(parser)
    parsed = parser.parse_args()
    return parsed.framework, TrainConfig.from_flags(parsed)


if __name__ == "__main__":
    run(lambda: check_imports(*_arguments()))
