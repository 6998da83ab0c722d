"""The figures that a measurement reports: as a table for people, as JSON for the check."""

import argparse
import json
from collections.abc import Callable
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


def table(figures: list[Figure]) -> str:
    rows = [
        f"| {each.what} | {each.value:,.4g} {each.unit}".rstrip()
        + f" | {each.wanted}{'' if each.is_met else ': **missed**'} |"
        for each in figures
    ]
    return "\n".join(["| | measured | wanted |", "| - | -: | - |", *rows])


def run(measure: Callable[[bool], list[Figure]]) -> None:
    """Run a measurement as a program: print its table, and write its figures where the check asks for them."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--json", type=Path, help="file for the figures")
    parser.add_argument("--miniature", action="store_true", help="try it on a CPU: its figures say nothing")
    arguments = parser.parse_args()
    if not arguments.miniature and not torch.cuda.is_available():
        parser.exit(2, "PyTorch finds no GPU on this machine: add --miniature to try the measurement without one\n")
    figures = measure(arguments.miniature)
    print(table(figures), flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps([asdict(each) for each in figures], indent=1))
