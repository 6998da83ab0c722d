"""Our PyTorch trainer beside the textbook's script: images a second of both, taking turns.

python benchmarks/trainers/pytorch.py [--model resnet50 --pixels 224 --source resident|fake|files]
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from images import write_images

HERE = Path(__file__).parent
UNTIMED_STEPS = 2


def main() -> None:
    arguments = parsed()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.source == "files":
            write_images(Path(folder, "images"), images_needed(arguments))
        rates: dict[str, list[float]] = {name: [] for name in ("textbook", *arguments.precisions)}
        for launch in range(arguments.launches):
            for name, measured in rates.items():
                output = Path(folder, f"{name}-{launch}")
                rate = textbook(arguments, Path(folder)) if name == "textbook" else ours(arguments, name, output)
                measured.append(rate)
                print(f"launch {launch + 1} {name:10} {rate:8.2f} images/s", file=sys.stderr, flush=True)
    print(table(arguments, rates))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--pixels", type=int, default=224)
    parser.add_argument("--batch", type=int, default=32, help="of each process")
    parser.add_argument("--steps", type=int, default=6, help="that are timed, after two that are not")
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--launches", type=int, default=3, help="of which the median counts")
    parser.add_argument("--source", choices=("resident", "fake", "files"), default="resident")
    parser.add_argument("--precisions", nargs="+", default=["fp32", "auto"])
    return parser.parse_args()


def images_needed(arguments: argparse.Namespace) -> int:
    return int(arguments.batch * arguments.processes * (arguments.steps + UNTIMED_STEPS))


def textbook(arguments: argparse.Namespace, folder: Path) -> float:
    source = str(folder / "images" / "train") if arguments.source == "files" else arguments.source
    settings = map(str, (arguments.model, arguments.pixels, arguments.batch, arguments.steps))
    printed = launched(arguments, [str(HERE / "textbook_pytorch.py"), *settings, source])
    return float(re.findall(r"images_per_second=([\d.]+)", printed)[-1])


def ours(arguments: argparse.Namespace, precision: str, output: Path) -> float:
    """The median of the steps after the untimed ones, of which metrics.jsonl tells each."""
    steps = arguments.steps + UNTIMED_STEPS
    settings = {
        "model": f"torchvision:{arguments.model}",
        "image_size": arguments.pixels,
        "batch_size": arguments.batch,
        "precision": precision,
        "data": "image_folder" if arguments.source == "files" else "synthetic",
        "synthetic_samples": images_needed(arguments),
        "synthetic_classes": 10 if arguments.source == "files" else 1000,
        "max_steps": steps,
        "epochs": 1,
        "clip_norm": 0,
        "log_every": 1,
        "checkpoint_every": 10 * steps,
        "validation_split": "val",
    }
    flags = [part for name, value in settings.items() for part in (f"--{name.replace('_', '-')}", str(value))]
    program = ["-m", "kubetrain_trainer.pytorch_ddp.train", "--data-dir", str(output.parent / "images")]
    launched(arguments, [*program, "--output-dir", str(output), *flags])
    return float(statistics.median(list(timed_rates(output))))


def timed_rates(output: Path) -> Iterator[float]:
    for line in (output / "metrics.jsonl").read_text().splitlines():
        row = json.loads(line)
        if "samples_per_second" in row and row["step"] > UNTIMED_STEPS:
            yield row["samples_per_second"]


def launched(arguments: argparse.Namespace, program: list[str]) -> str:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, f"--nproc-per-node={arguments.processes}", *program]
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    finished = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if finished.returncode:
        raise SystemExit(f"{' '.join(command)}\n{finished.stdout}\n{finished.stderr}")
    return finished.stdout


def table(arguments: argparse.Namespace, rates: dict[str, list[float]]) -> str:
    base = statistics.median(rates["textbook"])
    title = f"{arguments.model} at {arguments.pixels}, batch {arguments.batch}, {arguments.source}"
    rows = [
        f"| {name} | {statistics.median(each):.2f} | {statistics.median(each) / base:.2f} |"
        for name, each in rates.items()
    ]
    return "\n".join([f"| {title}, {arguments.processes} processes | images/s | ratio |", "| - | -: | -: |", *rows])


if __name__ == "__main__":
    main()
