"""Show rows again and again: in place on a terminal, and elsewhere as one line for each change."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar, Protocol

from rich.console import Console
from rich.live import Live
from rich.text import Text

from kubetrain_components.jobs.kubernetes.errors import Unreachable
from kubetrain_pipelines.kubeflow.follow_run import OUTAGE_TIMEOUT_SECONDS
from kubetrain_pipelines.requests.say import Say, print_line
from kubetrain_pipelines.status.rows import WIDTH, Row, wrapped
from kubetrain_pipelines.status.snapshot import Snapshot
from kubetrain_trainer.errors import KubetrainError

POLL_SECONDS = 2.0


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


class ResultUnknown(KubetrainError):
    """A job could not be followed to its end."""

    exit_code: ClassVar[int] = 3


def follow(read: Callable[[], Snapshot], say: Say) -> Iterator[Snapshot]:
    """Yield snapshots until the end, through outages of the API server.

    Raises:
        ResultUnknown: if a later snapshot cannot be read, because the job is gone, for example.
    """
    snapshot = read()
    last_answer = time.monotonic()
    while True:
        yield snapshot
        if snapshot.is_over:
            return
        time.sleep(POLL_SECONDS)
        try:
            snapshot = read()
            last_answer = time.monotonic()
        except KubetrainError as error:
            if not isinstance(error, Unreachable) or time.monotonic() - last_answer > OUTAGE_TIMEOUT_SECONDS:
                raise ResultUnknown(
                    f"{snapshot.name} can no longer be read, so how it ended is unknown: {error}"
                ) from error
            say(f"{error}; retrying")
