"""Draw curves as SVG in the page's colors, light or dark."""

import io
import re
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

mpl.use("svg")

# Placeholder colors that the page's CSS variables replace in the SVG.
PAGE_COLORS = {
    "#010203": "var(--ink-soft)",
    "#010204": "var(--line)",
    "#010205": "var(--blue)",
    "#010206": "var(--orange)",
}
TEXT, GRID, FIRST, SECOND = PAGE_COLORS
STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",  # keep text as text: it takes the page's font, and screen readers can read it
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": TEXT,
    "axes.labelcolor": TEXT,
    "axes.grid": True,
    "grid.color": GRID,
    "xtick.color": TEXT,
    "ytick.color": TEXT,
    "legend.frameon": False,
    "legend.labelcolor": TEXT,
}

Row = Mapping[str, Any]


def curves(rows: Sequence[Row], metric: str) -> dict[str, str]:
    """Return SVGs by title: the loss and the validation metric, without pictures that would be empty."""
    pictures = {
        "Loss": {"training": _series(rows, "loss"), "validation": _series(rows, "validation_loss")},
        f"Validation {metric}": {metric: _series(rows, f"validation_{metric}")},
    }
    return {
        title: _draw(title, {name: points for name, points in series.items() if points})
        for title, series in pictures.items()
        if any(series.values())
    }


def _series(rows: Sequence[Row], name: str) -> list[tuple[int, float]]:
    """The points of one curve, without nulls, which stand for values that are not a number."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def _draw(title: str, series: Mapping[str, list[tuple[int, float]]]) -> str:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(5.6, 3.0), layout="constrained")
        axes = figure.subplots()
        for (name, points), color in zip(series.items(), (FIRST, SECOND), strict=False):
            steps, values = zip(*points, strict=True)
            # Markers make a curve of few points, such as validation, visible.
            axes.plot(steps, values, color=color, label=name, linewidth=1.8, marker="o" if len(points) < 20 else None)
        _label(axes, title, has_legend=len(series) > 1)
        return _as_page_svg(figure, title)


def _label(axes: Axes, title: str, *, has_legend: bool) -> None:
    axes.set_xlabel("step")
    axes.set_ylabel(title.lower(), parse_math=False)  # a metric may be called us$_per_$
    first, last = axes.dataLim.intervalx
    if first == last:  # whole steps beside the only one
        axes.set_xlim(first - 1, last + 1)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if has_legend:
        axes.legend()


def _as_page_svg(figure: Figure, title: str) -> str:
    buffer = io.StringIO()
    figure.savefig(
        buffer, format="svg", transparent=True, metadata=dict.fromkeys(("Date", "Creator", "Format", "Type"))
    )
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :]
    for color, variable in PAGE_COLORS.items():
        svg = svg.replace(color, variable)
    # Pictures share a page, so each gets its own ids, and the page sets their width.
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r'(id="|url\(#|href="#)', rf"\1{prefix}-", svg)
    for size in ("width", "height"):
        svg = re.sub(rf'(<svg[^>]*?) {size}="[^"]*"', r"\1", svg, count=1)
    return svg.replace("<svg", f'<svg role="img" aria-label="{escape(title)}"', 1)
