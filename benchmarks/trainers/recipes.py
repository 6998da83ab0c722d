"""Compare the test accuracy that trainings reach on generated pictures of patterns, with several seeds.

They train by each recipe, and from the weights of a training on other patterns in a fifth of the steps.

.venv/bin/python benchmarks/trainers/recipes.py [--framework tensorflow --seeds 5]
"""

import argparse
import json
import statistics
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from launches import our_evaluation, our_training, run_together
from textures import OTHER_PATTERNS, write_textures

from kubetrain_trainer.settings.augmentation import RECIPES

BEFORE: dict[str, Any] = {"pictures": 300, "epochs": 15, "run": "trained-before"}
"""The training on other patterns."""
STUDENT_95 = {2: 12.71, 3: 4.30, 4: 3.18, 5: 2.78, 6: 2.57, 7: 2.45, 8: 2.36, 9: 2.31, 10: 2.26}
"""The factor of the standard error in a 95 % interval, by the number of seeds."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--framework", choices=("pytorch", "tensorflow"), default="pytorch")
    parser.add_argument("--model", default="digits_cnn")
    parser.add_argument("--pixels", type=int, default=32)
    parser.add_argument("--pictures", type=int, default=30, help="of each pattern, for training")
    parser.add_argument("--epochs", type=int, default=150)
    parser.add_argument("--seeds", type=int, default=5, choices=STUDENT_95)
    arguments = parser.parse_args()
    trainings: dict[str, dict[str, Any]] = {name: {"recipe": name} for name in RECIPES}
    trainings["pretrained, a fifth of the steps"] = {
        "initial_weights": BEFORE["run"],
        "epochs": arguments.epochs // 5,
    }
    accuracies: dict[str, list[float]] = {name: [] for name in trainings}
    with tempfile.TemporaryDirectory() as folder:
        write_textures(Path(folder, "pictures"), arguments.pictures, others=150)
        train_before(arguments, Path(folder))
        for seed in range(arguments.seeds):
            for name, changes in trainings.items():
                accuracies[name].append(accuracy(arguments, Path(folder), f"{name}-{seed}", {**changes, "seed": seed}))
                print(f"seed {seed} {name:32} {accuracies[name][-1]:.4f}", file=sys.stderr, flush=True)
    print("| training | test accuracy | more than none |\n| --- | ---: | ---: |")
    for name, each in accuracies.items():
        gains = [one - none for one, none in zip(each, accuracies["none"], strict=True)]
        print(f"| {name} | {with_interval(each)} | {with_interval(gains)} |")


def train_before(arguments: argparse.Namespace, folder: Path) -> None:
    write_textures(folder / "others", BEFORE["pictures"], others=50, patterns=OTHER_PATTERNS)
    train(arguments, folder, BEFORE["run"], {"recipe": "standard", "epochs": BEFORE["epochs"]}, folder / "others")


def accuracy(arguments: argparse.Namespace, folder: Path, run_id: str, changes: Mapping[str, Any]) -> float:
    train(arguments, folder, run_id, changes, folder / "pictures")
    run_together([our_evaluation(arguments.framework, folder / run_id, folder / "pictures")])
    return float(json.loads((folder / run_id / "evaluation.json").read_text())["metrics"]["accuracy"])


def train(arguments: argparse.Namespace, folder: Path, run_id: str, changes: Mapping[str, Any], pictures: Path) -> None:
    settings = {
        "model": arguments.model,
        "image_size": arguments.pixels,
        "epochs": arguments.epochs,
        "checkpoint_every": 10**6,
        "metrics_port": 0,
        **changes,
    }
    run_together(our_training(arguments.framework, settings, folder / run_id, pictures, 1))


def with_interval(values: list[float]) -> str:
    """Return the mean and half the width of its 95 % interval."""
    half = STUDENT_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.3f} ± {half:.3f}"


if __name__ == "__main__":
    main()
