"""Measure the gain from a second process: two that exchange gradients, one alone, and two that exchange nothing.

.venv/bin/python benchmarks/trainers/scaling.py [--framework tensorflow --pixels 64]

Two independent processes are the machine's upper bound, because CPUs share memory bandwidth. Each process has one
thread on its own CPU.
"""

import argparse
import os
import statistics
import sys
import tempfile
from itertools import chain
from pathlib import Path

from launches import Command, measured_settings, our_rate, our_training, run_together


def main() -> None:
    arguments = parsed()
    first, second, *_ = sorted(os.sched_getaffinity(0))
    contenders = {"one": [{first}], "two alone": [{first}, {second}], "two together": [{first, second}]}
    launches: list[dict[str, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for launch in range(arguments.launches):
            order = list(contenders)[:: -1 if launch % 2 else 1]  # alternate, so a slowing machine affects all equally
            launches.append({name: trained(arguments, Path(folder), contenders[name]) for name in order})
            latest = ", ".join(f"{name} {launches[-1][name]:.2f}" for name in contenders)
            print(f"launch {launch + 1}: {latest} images/s", file=sys.stderr, flush=True)
    print(table(arguments, launches))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("pytorch", "tensorflow"), default="pytorch")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32, help="batch size of each process")
    parser.add_argument("--steps", type=int, default=6, help="timed steps, after two untimed ones")
    parser.add_argument("--launches", type=int, default=3, help="launches; the median counts")
    parser.add_argument("--precision", default="auto")
    return parser.parse_args()


def trained(arguments: argparse.Namespace, folder: Path, groups: list[set[int]]) -> float:
    """Return the images per second of all groups running at once; each group trains with one process per CPU."""
    outputs = [folder / f"group-{number}" for number in range(len(groups))]
    run_together(
        list(
            chain.from_iterable(
                pinned(training(arguments, output, len(cpus)), cpus)
                for output, cpus in zip(outputs, groups, strict=True)
            )
        )
    )
    return sum(our_rate(output) for output in outputs)


def training(arguments: argparse.Namespace, output: Path, processes: int) -> list[Command]:
    asked = (arguments.framework, arguments.model, arguments.pixels, arguments.batch, arguments.steps)
    settings = measured_settings(*asked, processes)
    return our_training(
        arguments.framework, {**settings, "precision": arguments.precision}, output, output.parent, processes
    )


def pinned(commands: list[Command], cpus: set[int]) -> list[Command]:
    chosen = ",".join(map(str, sorted(cpus)))
    return [(["taskset", "--cpu-list", chosen, *arguments], environment) for arguments, environment in commands]


def table(arguments: argparse.Namespace, launches: list[dict[str, float]]) -> str:
    """Return the medians of the rates and of each launch's ratios, because conditions differ between launches."""
    title = f"{arguments.framework}, {arguments.model} at {arguments.pixels}, {arguments.precision}"
    rows = [
        "| {} | {:.2f} | {:.2f} | {:.2f} |".format(
            name,
            statistics.median(launch[name] for launch in launches),
            statistics.median(launch[name] / launch["one"] for launch in launches),
            statistics.median(launch[name] / launch["two alone"] for launch in launches),
        )
        for name in launches[0]
    ]
    return "\n".join([f"| {title} | images/s | of one | of two alone |", "| - | -: | -: | -: |", *rows])


if __name__ == "__main__":
    main()
