"""Write the dataset of this example: Python's own language reference, which comes with every Python.

python make_text.py DIR     makes DIR/train/*.txt, DIR/val/*.txt and DIR/test/*.txt
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics

SPLITS = ("train", "train", "train", "train", "train", "train", "train", "train", "val", "test")


def write_text(folder: Path) -> None:
    """One file for each topic; every tenth is for validation, every tenth for the test."""
    for number, name in enumerate(sorted(topics)):
        path = folder / SPLITS[number % len(SPLITS)] / f"{name.replace('/', '_')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(topics[name], encoding="utf-8")


if __name__ == "__main__":
    write_text(Path(sys.argv[1]))
