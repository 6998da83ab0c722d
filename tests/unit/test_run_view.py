"""The progress of a run on terminals of all widths, with stage names of all kinds, and in log files."""

import io
import os

import pytest
from rich.console import Console

from kubetrain_pipelines.requests.run_view import BarView, PlainView, open_view

PROGRESS = {"step": "100/300", "loss": 0.0259, "samples_per_second": 4127}


def shown(width: int, *stages: str) -> str:
    """Return the last lines of bars, one for each stage; the first one is in progress, the others have failed."""
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    view = BarView(console)
    for stage in stages:
        view.show({"stage": stage, "event": "started", "time": 0.0})
    view.show({"stage": stages[0], "event": "progress", "progress": PROGRESS})
    for stage in stages[1:]:
        view.show({"stage": stage, "event": "failed", "time": 1.0})
    view.close()
    text: str = console.file.getvalue()  # type: ignore[attr-defined]
    return text.rpartition("\x1b[2K")[2]


@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_the_elapsed_time_is_never_cut(width: int) -> None:
    lines = shown(width, "Train on the cluster").splitlines()
    assert "0:00:00 step 100/300" in lines[0]
    assert len(lines[0]) <= width


def test_the_progress_is_whole_on_a_hundred_columns() -> None:
    assert "step 100/300 · loss 0.0259 · 4127 samples/s" in shown(100, "Train on the cluster")


def test_a_stage_may_have_markup_in_its_name() -> None:
    text = shown(100, "Train [big]", "Publish [/]")
    assert "Train [big]" in text
    assert "Publish [/]" in text
    assert "failed" in text


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_a_log_file_gets_plain_lines_even_in_color(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.setenv(variable, "1")
    assert isinstance(open_view(Console(file=io.StringIO())), PlainView)


def test_a_terminal_gets_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    controller, terminal = os.openpty()
    try:
        with open(terminal, "w", closefd=False) as file:
            view = open_view(Console(file=file))
            assert isinstance(view, BarView)
            view.close()
    finally:
        os.close(controller)
        os.close(terminal)
