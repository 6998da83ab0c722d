"""Compare test accuracy on the digits with and without the fast path, with the same settings and several seeds.

.venv/bin/python benchmarks/trainers/convergence.py [--framework tensorflow] [--model torchvision:resnet18 --pixels 32]
"""

import argparse
import json
import re
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from launches import our_evaluation, our_training, python_program, run_together

from kubetrain_pipelines.local_run.digits import write_digits

HERE = Path(__file__).parent
PROCESSES = 2


def main() -> None:
    arguments = parsed()
    contestants: dict[str, Callable[..., float]] = {"plain": plain, "fp32": ours, "auto": ours}
    if arguments.framework == "tensorflow":
        del contestants["plain"]  # Keras' own fit does not run under the strategy
    accuracies: dict[str, list[float]] = {name: [] for name in contestants}
    with tempfile.TemporaryDirectory() as folder:
        write_digits(Path(folder, "digits"))
        for seed in range(arguments.seeds):
            for name, train in contestants.items():
                accuracies[name].append(train(arguments, Path(folder), name, seed))
                print(f"seed {seed} {name:6} {accuracies[name][-1]:.4f}", file=sys.stderr, flush=True)
    print(table(arguments, accuracies))


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("pytorch", "tensorflow"), default="pytorch")
    parser.add_argument("--model", default="digits_cnn")
    parser.add_argument("--pixels", type=int, default=8)
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--seeds", type=int, default=5)
    return parser.parse_args()


def plain(arguments: argparse.Namespace, folder: Path, name: str, seed: int) -> float:
    settings = map(str, (arguments.model, arguments.pixels, arguments.epochs, seed))
    program = [str(HERE / "plain_pytorch.py"), str(folder / "digits"), *settings]
    (printed,) = run_together(python_program("pytorch", program, PROCESSES))
    return float(re.findall(r"test_accuracy=([\d.]+)", printed)[-1])


def ours(arguments: argparse.Namespace, folder: Path, precision: str, seed: int) -> float:
    """Return the accuracy of the last checkpoint, the only one that the plain training has."""
    output = folder / f"{precision}-{seed}"
    settings = {
        "model": arguments.model,
        "image_size": arguments.pixels,
        "epochs": arguments.epochs,
        "seed": seed,
        "precision": precision,
        "select_checkpoint": "last",
        "checkpoint_every": 10**6,
        "metrics_port": 0,
    }
    run_together(our_training(arguments.framework, settings, output, folder / "digits", PROCESSES))
    run_together([our_evaluation(arguments.framework, output, folder / "digits")])
    return float(json.loads((output / "evaluation.json").read_text())["metrics"]["accuracy"])


def table(arguments: argparse.Namespace, accuracies: dict[str, list[float]]) -> str:
    title = f"{arguments.framework}, {arguments.model}, {arguments.epochs} epochs, {arguments.seeds} seeds"
    rows = [
        f"| {name} | {statistics.mean(each):.4f} | {min(each):.4f} to {max(each):.4f} |"
        for name, each in accuracies.items()
    ]
    return "\n".join([f"| {title} | mean test accuracy | range |", "| - | -: | -: |", *rows])


if __name__ == "__main__":
    main()
