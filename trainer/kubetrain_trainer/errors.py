"""Errors are for people: one sentence that says what was wrong, with which value, and what to do."""

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

MAX_CHOICE = 8
"""So many names are read at a glance; of more, only the nearest is shown."""


class KubetrainError(Exception):
    """Something failed; the message is the sentence to show. Ends a command with exit code 1."""

    is_curable: ClassVar[bool] = False
    """Whether the same again, a little later, might succeed."""


class InvalidSetting(KubetrainError, ValueError):
    """A setting that cannot be used, found before any side effect. Ends a command with exit code 2."""


class Stopped(Exception):
    """The training was asked to stop, and saved a step to resume from. Ends a process as SIGTERM does."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__(result)
        self.result = result
        """The last words of every process that took part."""


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest valid one, or all of a few."""
    valid = sorted(valid)
    cutoff = 0.5 if len(valid) <= MAX_CHOICE else 0.0
    nearest = difflib.get_close_matches(name, valid, n=1, cutoff=cutoff)
    return f"did you mean '{nearest[0]}'?" if nearest else f"valid names: {', '.join(valid)}"
