"""Errors are for people: one sentence that says what was wrong, with which value, and what to do."""

import difflib
from collections.abc import Iterable


class KubetrainError(Exception):
    """Something failed; the message is the sentence to show. Ends a command with exit code 1."""


class InvalidSetting(KubetrainError, ValueError):
    """A setting that cannot be used, found before any side effect. Ends a command with exit code 2."""


def did_you_mean(name: str, valid: Iterable[str]) -> str:
    """The remedy for an unknown name: the nearest valid one, or all of them."""
    valid = sorted(valid)
    nearest = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return f"did you mean '{nearest[0]}'?" if nearest else f"valid are: {', '.join(valid)}"
