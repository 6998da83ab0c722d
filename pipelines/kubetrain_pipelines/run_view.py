"""The progress of a run: bars on a terminal, plain lines elsewhere."""

import time
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn

from kubetrain_trainer.step_window import LARGE_WAIT_SHARE

PLAIN_LINE_SECONDS = 2.0
COUNTED = ("step", "objects", "samples")
"""Names in a progress event whose values are done/total."""


class RunView(Protocol):
    def show(self, event: dict[str, Any]) -> None: ...

    def close(self) -> None: ...


def open_view(console: Console) -> RunView:
    return BarView(console) if console.is_terminal else PlainView(console)


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
                self._print(f"{stage}: started")
            case "progress" if time.monotonic() - self._printed_at >= PLAIN_LINE_SECONDS:
                self._print(f"{stage}: {describe_progress(event['progress'])}")
            case "finished" | "failed" | "stopped" as ending:
                self._print(f"{stage}: {ending} after {event['time'] - self._started[stage]:.1f} s")

    def close(self) -> None:
        pass

    def _print(self, line: str) -> None:
        self._printed_at = time.monotonic()
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)


class BarView:
    """Shows a bar for each stage."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            SpinnerColumn(finished_text="[green]✓[/]"),
            TextColumn("{task.description:<19}"),
            BarColumn(bar_width=28),
            TimeElapsedColumn(),
            TextColumn("{task.fields[details]}"),
            console=console,
        )
        self._tasks: dict[str, TaskID] = {}
        self._progress.start()

    def show(self, event: dict[str, Any]) -> None:
        stage = event["stage"]
        if event["event"] == "started":
            self._tasks[stage] = self._progress.add_task(stage, total=None, details="")
            return
        task = self._tasks[stage]
        if event["event"] == "progress":
            done, total = fraction_done(event["progress"])
            details = escape(describe_progress(event["progress"]))
            self._progress.update(task, completed=done, total=total, details=details)
        elif event["event"] == "finished":
            self._progress.update(task, completed=1, total=1)
        else:
            self._progress.update(task, description=f"[red]{stage}[/]", details=f"[red]{event['event']}[/]")
            self._progress.stop_task(task)

    def close(self) -> None:
        self._progress.stop()


def describe_progress(progress: dict[str, Any]) -> str:
    """Return a line such as: step 100/300 · loss 0.0259 · 4127 samples/s."""
    parts = [f"{name} {progress[name]}" for name in COUNTED if name in progress]
    parts += [f"loss {progress['loss']:.4f}"] if "loss" in progress else []
    parts += [f"{progress['samples_per_second']:.0f} samples/s"] if "samples_per_second" in progress else []
    waiting = progress.get("data_wait_share", 0.0)
    parts += [f"waiting for data {waiting:.0%} of the time"] if waiting >= LARGE_WAIT_SHARE else []
    return " · ".join(parts)


def fraction_done(progress: dict[str, Any]) -> tuple[float, float | None]:
    """Return the amounts that are done and in total; the total is None if it is unknown."""
    counted = next((str(progress[name]) for name in COUNTED if name in progress), "")
    done, slash, total = counted.partition("/")
    return (float(done), float(total)) if slash else (0.0, None)
