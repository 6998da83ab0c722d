"""The progress of a run: bars on a terminal, plain lines elsewhere."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Column

from kubetrain_components.shown_values import number
from kubetrain_trainer.reporting.own_time import LARGE_WAIT_SHARE

PLAIN_LINE_SECONDS = 2.0
MIN_BAR, MAX_BAR, OTHER_COLUMNS = 8, 28, 78
COUNTED = ("step", "objects", "samples")
"""Names in a progress event whose values are done/total."""


class RunView(Protocol):
    def show(self, event: dict[str, Any]) -> None: ...

    def say(self, line: str) -> None: ...

    def close(self) -> None: ...


@contextmanager
def progress_view() -> Iterator[RunView]:
    """Show progress on the standard output while the block runs, in a notebook as plain lines."""
    view = open_view(Console(force_jupyter=False))
    try:
        yield view
    finally:
        view.close()


def open_view(console: Console) -> RunView:
    """Return bars on a real terminal only: FORCE_COLOR, which CI systems set, makes none of a log file."""
    return BarView(console) if console.is_terminal and console.file.isatty() else PlainView(console)


class PlainView:
    """Prints a line when a stage starts, every two seconds while it runs, and when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started: dict[str, float] = {}
        self._printed_at = 0.0

    def show(self, event: dict[str, Any]) -> None:
        stage = event["stage"]
        match event["event"]:
            case "started":
                self._started[stage] = event["time"]
                self.say(f"{stage}: started")
            case "progress" if time.monotonic() - self._printed_at >= PLAIN_LINE_SECONDS:
                self.say(f"{stage}: {describe_progress(event['progress'])}")
            case "finished" | "failed" | "stopped" as ending:
                self.say(f"{stage}: {ending} after {event['time'] - self._started[stage]:.1f} s")

    def say(self, line: str) -> None:
        self._printed_at = time.monotonic()
        _print_plain(self._console, line)

    def close(self) -> None:
        pass


class BarView:
    """Shows a bar for each stage."""

    def __init__(self, console: Console) -> None:
        whole = Column(no_wrap=True)
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]", table_column=whole),
            TextColumn("{task.description:<19}", table_column=whole),
            BarColumn(bar_width=max(MIN_BAR, min(MAX_BAR, console.width - OTHER_COLUMNS)), table_column=whole),
            TimeElapsedColumn(table_column=whole),
            # Of all columns, only this one gives way on a narrow terminal.
            TextColumn("{task.fields[details]}", table_column=Column(ratio=1, overflow="ellipsis", no_wrap=True)),
            console=console,
            expand=True,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def show(self, event: dict[str, Any]) -> None:
        stage = event["stage"]
        if event["event"] == "started":
            self._tasks[stage] = self._progress.add_task(escape(stage), total=None, details="")
            return
        task = self._tasks[stage]
        if event["event"] == "progress":
            done, total = fraction_done(event["progress"])
            details = escape(describe_progress(event["progress"]))
            self._progress.update(task, completed=done, total=total, details=details)
        elif event["event"] == "finished":
            self._progress.update(task, completed=1, total=1)
        else:
            self._progress.update(task, description=f"[red]{escape(stage)}[/]", details=f"[red]{event['event']}[/]")
            self._progress.stop_task(task)

    def say(self, line: str) -> None:
        _print_plain(self._progress.console, line)

    def close(self) -> None:
        self._progress.stop()


def _print_plain(console: Console, line: str) -> None:
    console.print(line, markup=False, highlight=False, soft_wrap=True)


def describe_progress(progress: dict[str, Any]) -> str:
    """Return a line such as: step 100/300 · loss 0.0259 · 4127 samples/s."""
    parts = progress_parts(progress)
    waiting = progress.get("data_wait_share", 0.0)
    parts += [f"waiting for data {waiting:.0%} of the time"] if waiting >= LARGE_WAIT_SHARE else []
    return " · ".join(parts)


def progress_parts(progress: Mapping[str, Any]) -> list[str]:
    parts = [f"{name} {_whole(progress[name])}" for name in COUNTED if name in progress]
    parts += [f"loss {number(progress['loss'])}"] if "loss" in progress else []
    parts += [f"{progress['samples_per_second']:.0f} samples/s"] if "samples_per_second" in progress else []
    return parts


def _whole(count: str | float) -> str:
    return f"{count:.0f}" if isinstance(count, float) else count


def fraction_done(progress: dict[str, Any]) -> tuple[float, float | None]:
    """Return the amounts that are done and in total; the total is None if it is unknown."""
    counted = next((str(progress[name]) for name in COUNTED if name in progress), "")
    done, slash, total = counted.partition("/")
    return (float(done), float(total)) if slash else (0.0, None)
