"""The progress bar of commands that transfer bytes."""

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


def transfer_bar() -> Progress:
    """Return a bar that is shown on terminals only. Each of its tasks needs the field "counted"."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.fields[counted]}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
