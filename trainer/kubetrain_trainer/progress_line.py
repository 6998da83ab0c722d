"""The line by which a process tells its log, and whoever follows that log, how far it is."""

PREFIX = "[kubetrain] "
"""Unlike anything that a user's own code prints."""


def format_progress(**values: str | int | float) -> str:
    return PREFIX + " ".join(f"{name}={_short(value)}" for name, value in values.items())


def parse_progress(line: str) -> dict[str, str | float] | None:
    """The values of a progress line, numbers as numbers; None for any other line."""
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
