"""Sentences about what a function has done so far, which its caller shows."""

from collections.abc import Callable

Say = Callable[[str], None]


def print_line(line: str) -> None:
    print(line, flush=True)
