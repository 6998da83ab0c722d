"""A list in a sentence that stays readable for a thousand pods."""

from __future__ import annotations

from collections.abc import Sequence

MAX_NAMED = 8


def some_of(items: Sequence[str]) -> str:
    more = len(items) - MAX_NAMED
    return ", ".join(items) if more <= 1 else f"{', '.join(items[:MAX_NAMED])} and {more} more"
