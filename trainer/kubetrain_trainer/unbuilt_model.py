"""A Keras model that gets its weights only when the training begins: no checkpoint can be loaded into it."""

from typing import Any

from kubetrain_trainer.errors import InvalidSetting


def check_built(name: str, model: Any) -> None:
    """
    Raises:
        InvalidSetting: if the model has no weights yet.
    """
    if not model.built:
        raise InvalidSetting(f"{name} has no weights yet: begin it with keras.Input, or call its build()")
