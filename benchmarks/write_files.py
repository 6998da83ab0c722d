"""The lower bound for every tool: write the same files from memory, without a network.

python benchmarks/write_files.py DIRECTORY FILES BYTES
"""

import os
import sys
from pathlib import Path

FOLDER_FILES = 100
CHUNK = os.urandom(1 << 20)


def write_files(directory: Path, files: int, total_bytes: int) -> None:
    size, rest = divmod(total_bytes, files)
    for number in range(files):
        folder = directory / f"{number // FOLDER_FILES}"
        folder.mkdir(exist_ok=True)
        _write(folder / f"{number}", size + (rest if number == 0 else 0))


def _write(path: Path, size: int) -> None:
    with path.open("wb") as file:
        for start in range(0, size, len(CHUNK)):
            file.write(CHUNK[: size - start])


if __name__ == "__main__":
    write_files(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
