"""Where a training's state lies while it is written: the steps go on and change the original."""

from typing import Any

import numpy as np
import tensorflow as tf


class Staging:
    """Memory for one state, kept from save to save: to allocate it anew takes longer than to copy."""

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._kept: dict[str, Any] = {}

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """By name, a copy of each variable's value.

        All processes take part, for a variable may be spread over them; those that write nothing keep nothing.
        """
        for name, variable in state.items():
            value = tf.convert_to_tensor(variable.value)
            if self._keeps:
                self._keep(name, np.asarray(value))
        return self._kept

    def _keep(self, name: str, value: np.ndarray) -> None:
        if name in self._kept:
            np.copyto(self._kept[name], value)
        else:
            self._kept[name] = value.copy()
