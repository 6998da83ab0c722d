"""The example dataset: the 1,797 handwritten digits of scikit-learn, as images in folders.

python -m kubetrain_pipelines.local_run.digits FOLDER
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

VALIDATION_SHARE = 0.15
TEST_SHARE = 0.15


def write_digits(folder: Path) -> None:
    """Write <split>/<class>/<number>.png with a stratified, deterministic split."""
    digits = load_digits()
    training, rest = _split(np.arange(len(digits.target)), digits.target, VALIDATION_SHARE + TEST_SHARE)
    validation, test = _split(rest, digits.target, TEST_SHARE / (VALIDATION_SHARE + TEST_SHARE))
    for split, indices in {"train": training, "val": validation, "test": test}.items():
        for index in indices:
            path = folder / split / str(digits.target[index]) / f"{index:04d}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray((digits.images[index] * 255 / 16).round().astype("uint8")).save(path)


def _split(indices: np.ndarray, labels: np.ndarray, second_share: float) -> tuple[np.ndarray, np.ndarray]:
    first, second = train_test_split(indices, test_size=second_share, stratify=labels[indices], random_state=0)
    return first, second


if __name__ == "__main__":
    write_digits(Path(sys.argv[1]))
