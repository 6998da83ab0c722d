"""What is on a disk while other processes write and delete there."""

import os
from collections.abc import Iterator
from pathlib import Path


def file_sizes(folder: Path) -> Iterator[int]:
    """Yield the size of each file in a folder and those below; what is deleted meanwhile is left out."""
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                yield Path(parent, name).stat().st_size
            except FileNotFoundError:
                continue
