"""A task of the user's own, made by the function that `model` names."""

import inspect
from pathlib import Path
from typing import Any

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.processes.import_path import load_function
from kubetrain_trainer.settings.config import TrainConfig

FUNCTIONS = (
    *("data", "training_data", "collate", "sampler", "loss", "training_loss"),
    *("optimizer", "parameter_groups", "schedule", "step", "layers"),
)
"""Fields of a task that must be functions, of either framework."""


def build_own_task(config: TrainConfig, data_dir: Path, kind: type) -> Any:
    """
    Args:
        kind: The framework's class of tasks.

    Raises:
        InvalidSetting: if the function does not return one, or a part of it is not a function, or names a class twice.
    """
    build = load_function(config.model)
    check_takes_both(config.model, build)
    task = build(config, data_dir)
    if not isinstance(task, kind):
        raise InvalidSetting(
            f"'{config.model}' returned a {type(task).__name__}; it must return a kubetrain_trainer.{kind.__name__}"
        )
    check_functions(task)
    check_classes(task)
    return task


def check_takes_both(name: str, build: Any) -> None:
    try:
        inspect.signature(build).bind("config", "data_dir")
    except TypeError as error:  # also for what is not a function
        raise InvalidSetting(
            f"'{name}' must be a function build(config, data_dir) that returns a Task: {error}"
        ) from None


def check_functions(task: Any) -> None:
    for name in FUNCTIONS:
        part = getattr(task, name, None)
        if part is not None and not callable(part):
            example = ", such as lambda split: …" if name == "data" else ""
            raise InvalidSetting(f"{name} of the Task is a {type(part).__name__}: give a function{example}")


def check_classes(task: Any) -> None:
    if twice := [name for name in task.classes if task.classes.count(name) > 1]:
        raise InvalidSetting(f"classes of the Task has '{twice[0]}' more than once: give each class a name of its own")


def check_built(name: str, model: Any) -> None:
    """
    Raises:
        InvalidSetting: if the model has no weights yet.
    """
    if not model.built:
        raise InvalidSetting(f"{name} has no weights yet: begin it with keras.Input, or call its build()")
