"""The log lines with which a process reports its progress."""

from __future__ import annotations

PREFIX = "[kubetrain] "
"""A prefix that users' own output is unlikely to have."""


def format_progress(**values: str | int | float) -> str:
    return PREFIX + " ".join(f"{name}={_short(value)}" for name, value in values.items())


def parse_progress(line: str) -> dict[str, str | float] | None:
    """Return the values of a progress line, with numbers as floats, or None for any other line."""
    if not line.startswith(PREFIX):
        return None
    pairs = [part.partition("=") for part in line.removeprefix(PREFIX).split()]
    if not all(name and separator for name, separator, _ in pairs):
        return None
    return {name: _number_or_text(value) for name, _, value in pairs}


def _short(value: str | int | float) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _number_or_text(text: str) -> str | float:
    try:
        return float(text)
    except ValueError:
        return text
