"""The state of a run and of its stages, as text and as a notebook shows it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from kubetrain_components.shown_values import describe_seconds, number

COLORS = {"succeeded": "#2e7d32", "failed": "#c62828", "canceled": "#c62828", "running": "#1565c0"}
"""Readable on light and dark pages. Other states have the color of the text."""
REPORT_HEIGHT = 600


@dataclass(frozen=True)
class Stage:
    name: str
    state: str
    """running, succeeded, failed, or another state of Kubeflow Pipelines."""
    seconds: float


@dataclass(frozen=True)
class Status:
    state: str
    """pending, running, succeeded, failed, canceled, or another state of Kubeflow Pipelines."""
    seconds: float
    stages: tuple[Stage, ...]
    """The stages that have started, in that order."""
    causes: tuple[str, ...] = ()
    """One sentence for each failed stage whose cause is known."""


def run_page(heading: str, status: Status, metrics: Mapping[str, float | None], model_uri: str, link: str = "") -> str:
    """
    Args:
        link: The address of the run's page; may be empty.
    """
    stages = ((escape(stage.name), _state(stage.state), describe_seconds(stage.seconds)) for stage in status.stages)
    numbers = ((escape(name), number(value)) for name, value in metrics.items())
    parts = [
        f"<p><b>{escape(heading)}</b>: {_state(status.state)}, {describe_seconds(status.seconds)}</p>",
        _table(stages),
        *map(sentence, status.causes),
        _table(numbers),
        sentence(f"Model: {model_uri}") if model_uri else "",
        f'<p><a href="{escape(link)}" target="_blank">Page in Kubeflow Pipelines</a></p>' if link else "",
    ]
    return "".join(parts)


def sentence(text: str) -> str:
    return f"<p>{escape(text)}</p>"


def embedded_page(title: str, path: Path) -> str:
    """Return a page of its own in a part that opens with a click. Notebooks do not open links to files."""
    if not path.is_file():
        return sentence(f"{title}: {path} does not exist anymore")
    content = escape(path.read_text())
    frame = f'<iframe sandbox srcdoc="{content}" style="width: 100%; height: {REPORT_HEIGHT}px; border: 0"></iframe>'
    return f"<details><summary>{escape(title)}: {escape(str(path))}</summary>{frame}</details>"


def _state(state: str) -> str:
    return f'<span style="color: {COLORS.get(state, "inherit")}">{escape(state)}</span>'


def _table(rows: Iterable[Sequence[str]]) -> str:
    """
    Args:
        rows: Cells of HTML.
    """
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in rows)
    return f'<table style="margin: 0 0 8px">{body}</table>' if body else ""


def _cell(content: str) -> str:
    return f'<td style="text-align: left; padding: 2px 16px 2px 0">{content}</td>'
