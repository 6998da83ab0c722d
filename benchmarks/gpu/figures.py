"""The figures that a measurement reports: as a table for people, as JSON for the check."""

import argparse
import json
import signal
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

import torch


@dataclass(frozen=True, kw_only=True)
class Figure:
    what: str
    value: float
    unit: str = ""
    at_least: float | None = None
    at_most: float | None = None

    @property
    def wanted(self) -> str:
        bounds = ((self.at_least, "at least"), (self.at_most, "at most"))
        return ", ".join(f"{words} {bound:g}" for bound, words in bounds if bound is not None)

    @property
    def is_met(self) -> bool:
        too_low = self.at_least is not None and self.value < self.at_least
        return not too_low and not (self.at_most is not None and self.value > self.at_most)


HEADING = "| | measured | wanted |\n| - | -: | - |"


def row(figure: Figure) -> str:
    wanted = figure.wanted + ("" if figure.is_met else ": **missed**")
    return f"| {figure.what} | {figure.value:,.4g} {figure.unit}".rstrip() + f" | {wanted} |"


def check_gpu(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Exit if there is nothing to measure."""
    if not arguments.miniature and not torch.cuda.is_available():
        parser.exit(2, "PyTorch finds no GPU on this machine: add --miniature to try without one\n")


def run(measure: Callable[[bool], Iterable[Figure]]) -> None:
    """Run a measurement as a program: print each figure as it comes, and write them where the check asks for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--miniature", action="store_true", help="try it on a CPU: its figures say nothing")
    arguments = parser.parse_args()
    check_gpu(parser, arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped, because it took too long"))
    print(HEADING, flush=True)
    figures: list[Figure] = []
    for figure in measure(arguments.miniature):
        print(row(figure), flush=True)
        figures.append(figure)
        if arguments.json:
            arguments.json.write_text(json.dumps([asdict(each) for each in figures], indent=1))
