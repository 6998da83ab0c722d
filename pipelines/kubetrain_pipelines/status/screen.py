"""Show rows again and again: in place on a terminal, and elsewhere as one line for each change."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kubetrain_pipelines.say import print_line
from kubetrain_pipelines.status.rows import WIDTH, Row, wrapped


class Screen(Protocol):
    def show(self, rows: Sequence[Row]) -> None: ...

    def say(self, line: str) -> None: ...


@contextmanager
def open_screen() -> Iterator[Screen]:
    console = Console(force_jupyter=False)
    if not (console.is_terminal and console.file.isatty()) or console.is_dumb_terminal:
        yield Changes()
        return
    with Live(console=console, auto_refresh=False) as live:
        yield Redrawn(live)


class Redrawn:
    def __init__(self, live: Live) -> None:
        self._live = live

    def show(self, rows: Sequence[Row]) -> None:
        width = min(WIDTH, self._live.console.width)
        self._live.update(Text("\n".join(wrapped(rows, width))), refresh=True)

    def say(self, line: str) -> None:
        self._live.console.print(line, markup=False, highlight=False, soft_wrap=True)


class Changes:
    def __init__(self) -> None:
        self._shown: dict[str, str] = {}

    def show(self, rows: Sequence[Row]) -> None:
        for row in rows:
            if self._shown.get(row.key) != row.news:
                print_line(row.plain)
        self._shown = {row.key: row.news for row in rows}

    def say(self, line: str) -> None:
        print_line(line)
