"""Compare the test accuracy that the recipes reach on generated pictures of patterns, with several seeds.

.venv/bin/python benchmarks/trainers/recipes.py [--framework tensorflow --seeds 5]
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path

from launches import our_evaluation, our_training, run_together
from textures import write_textures

from kubetrain_trainer.augmentation import RECIPES

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
    accuracies: dict[str, list[float]] = {name: [] for name in RECIPES}
    with tempfile.TemporaryDirectory() as folder:
        write_textures(Path(folder, "pictures"), arguments.pictures, others=150)
        for seed in range(arguments.seeds):
            for recipe in RECIPES:
                accuracies[recipe].append(accuracy(arguments, Path(folder), recipe, seed))
                print(f"seed {seed} {recipe:8} {accuracies[recipe][-1]:.4f}", file=sys.stderr, flush=True)
    print("| recipe | test accuracy | more than none |\n| --- | ---: | ---: |")
    for recipe, each in accuracies.items():
        gains = [one - none for one, none in zip(each, accuracies["none"], strict=True)]
        print(f"| `{recipe}` | {with_interval(each)} | {with_interval(gains)} |")


def accuracy(arguments: argparse.Namespace, folder: Path, recipe: str, seed: int) -> float:
    output = folder / f"{recipe}-{seed}"
    settings = {
        "model": arguments.model,
        "image_size": arguments.pixels,
        "epochs": arguments.epochs,
        "recipe": recipe,
        "seed": seed,
        "checkpoint_every": 10**6,
        "metrics_port": 0,
    }
    run_together(our_training(arguments.framework, settings, output, folder / "pictures", 1))
    run_together([our_evaluation(arguments.framework, output, folder / "pictures")])
    return float(json.loads((output / "evaluation.json").read_text())["metrics"]["accuracy"])


def with_interval(values: list[float]) -> str:
    """Return the mean and half the width of its 95 % interval."""
    half = STUDENT_95[len(values)] * statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.3f} ± {half:.3f}"


if __name__ == "__main__":
    main()
