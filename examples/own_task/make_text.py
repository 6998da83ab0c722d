"""Write the dataset of this example: the language reference that comes with Python.

python make_text.py DIR     writes DIR/train/*.txt, DIR/val/*.txt and DIR/test/*.txt
"""

import sys
from pathlib import Path
from pydoc_data.topics import topics

SPLITS = (*["train"] * 8, "val", "test")


def write_text(folder: Path) -> None:
    """Write one file per topic, of every ten one for validation and one for the test."""
    for number, name in enumerate(sorted(topics)):
        path = folder / SPLITS[number % len(SPLITS)] / f"{name.replace('/', '_')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(topics[name], encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python make_text.py DIR")
    write_text(Path(sys.argv[1]))
