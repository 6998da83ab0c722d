"""Compare both trainers with the textbook scripts: images per second, taking turns.

python benchmarks/trainers/beside_textbook.py [--framework tensorflow --model resnet50 --pixels 224 --source files]
"""

import argparse
import statistics
import sys
import tempfile
from pathlib import Path

from images import write_images
from launches import (
    images_needed,
    measured_settings,
    our_rate,
    our_training,
    printed_rate,
    python_program,
    run_together,
)

HERE = Path(__file__).parent


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as folder:
        data_dir = Path(folder, "images")
        if arguments.source == "files":
            write_images(data_dir, images_needed(arguments.batch, arguments.steps, arguments.processes))
        rates: dict[str, list[float]] = {name: [] for name in ("textbook", *arguments.precisions)}
        for launch in range(arguments.launches):
            for name, measured in rates.items():
                output = Path(folder, f"{name}-{launch}")
                rate = textbook(arguments, data_dir) if name == "textbook" else ours(arguments, name, output, data_dir)
                measured.append(rate)
                print(f"launch {launch + 1} {name:10} {rate:8.2f} images/s", file=sys.stderr, flush=True)
    print(table(arguments, rates))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--framework", choices=("pytorch", "tensorflow"), default="pytorch")
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32, help="batch size of each process")
    parser.add_argument("--steps", type=int, default=6, help="timed steps, after two untimed ones")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3, help="launches; the median counts")
    parser.add_argument("--source", choices=("resident", "fake", "files"), default="resident")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "auto"])
    return parser.parse_args()


def textbook(arguments: argparse.Namespace, data_dir: Path) -> float:
    source = str(data_dir / "train") if arguments.source == "files" else arguments.source
    settings = map(str, (arguments.model, arguments.pixels, arguments.batch, arguments.steps, source))
    program = [str(HERE / f"textbook_{arguments.framework}.py"), *settings]
    return printed_rate(run_together(python_program(arguments.framework, program, arguments.processes)))


def ours(arguments: argparse.Namespace, precision: str, output: Path, data_dir: Path) -> float:
    asked = (arguments.framework, arguments.model, arguments.pixels, arguments.batch, arguments.steps)
    settings = measured_settings(*asked, arguments.processes)
    settings["precision"] = precision
    if arguments.source == "files":
        settings["data"] = "image_folder"
    run_together(our_training(arguments.framework, settings, output, data_dir, arguments.processes))
    return our_rate(output)


def table(arguments: argparse.Namespace, rates: dict[str, list[float]]) -> str:
    base = statistics.median(rates["textbook"])
    title = f"{arguments.framework}, {arguments.model} at {arguments.pixels}, batch {arguments.batch}"
    rows = [
        f"| {name} | {statistics.median(each):.2f} | {statistics.median(each) / base:.2f} |"
        for name, each in rates.items()
    ]
    heading = f"| {title}, {arguments.source}, {arguments.processes} processes | images/s | ratio |"
    return "\n".join([heading, "| - | -: | -: |", *rows])


if __name__ == "__main__":
    main()
