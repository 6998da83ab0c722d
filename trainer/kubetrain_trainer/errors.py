"""Errors whose message is one sentence for users: what is wrong, with which value, and how to fix it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

MAX_LISTED = 8
"""The maximum number of valid names to list."""


class KubetrainError(Exception):
    """A failure with a message for users. A command exits with code 1."""

    is_curable: ClassVar[bool] = False
    """True if a retry might succeed."""
    avoid_nodes: tuple[str, ...] = ()
    """Nodes without which another attempt might succeed."""

    def _render_traceback_(self) -> list[str]:
        """Return what a notebook shows in place of a traceback, by this name of IPython's."""
        return [f"{type(self).__name__}: {self}"]


class InvalidSetting(KubetrainError, ValueError):
    """An invalid setting, found before any side effect. A command exits with code 2."""


class RunFailed(KubetrainError):
    """The run ended without success. The message has the cause, if it is known."""


class Stopped(Exception):
    """The training was asked to stop and saved a checkpoint. The process exits as if killed by SIGTERM."""

    def __init__(self, result: Mapping[str, Any]) -> None:
        super().__init__(result)
        self.result = result
        """The termination message, equal in all processes."""


def did_you_mean(name: str, valid: Iterable[str], examples: Sequence[str] = ()) -> str:
    """Suggest the closest valid name, or list all valid names if there are few, or else these examples."""
    valid = sorted(valid)
    if nearest := difflib.get_close_matches(name, valid, n=1, cutoff=0.5):
        return f"did you mean '{nearest[0]}'?"
    if len(valid) <= MAX_LISTED:
        return f"valid names: {', '.join(valid)}"
    return f"its names are such as {', '.join(examples)}" if examples else "no valid name is like it"


def check_one_of(allowed: Iterable[str], name: str, value: str) -> None:
    if value not in (values := list(allowed)):
        raise InvalidSetting(f"{name} is '{value}': use one of {', '.join(values)}")
