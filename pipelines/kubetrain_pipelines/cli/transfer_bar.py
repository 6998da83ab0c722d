"""The bar of a command that moves bytes: what it counts, bytes, rate and time left."""

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn


def transfer_bar() -> Progress:
    """On a terminal, and nothing elsewhere; each task has a field, counted."""
    console = Console(stderr=True)
    columns = (
        TextColumn("{task.fields[counted]}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
