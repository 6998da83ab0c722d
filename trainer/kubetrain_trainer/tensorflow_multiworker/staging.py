"""A copy of the training's state in memory, to be written while the next steps change the original."""

from typing import Any

import numpy as np
import tensorflow as tf


class Staging:
    """Memory for one state, reused by each save because allocating it takes longer than copying."""

    def __init__(self, *, is_needed: bool) -> None:
        self._is_needed = is_needed
        self._copies: dict[str, Any] = {}

    def copy(self, state: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of each variable's value, by name; empty in processes that do not need it.

        All processes take part, because reading a variable may involve all of them.
        """
        for name, variable in state.items():
            value = tf.convert_to_tensor(variable.value)
            if self._is_needed:
                self._store(name, np.asarray(value))
        return self._copies

    def _store(self, name: str, value: np.ndarray) -> None:
        if name in self._copies:
            np.copyto(self._copies[name], value)
        else:
            self._copies[name] = value.copy()
