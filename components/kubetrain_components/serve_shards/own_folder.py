"""A folder in a workspace for the cache of each run. A run removes the folders of those that were killed."""

import contextlib
import fcntl
import shutil
from collections.abc import Iterator
from pathlib import Path
from tempfile import mkdtemp

NAME = "shard-cache-"


@contextlib.contextmanager
def own_folder(workspace: Path) -> Iterator[Path]:
    """Yield a new folder, which no other run removes while the block runs."""
    for folder in workspace.glob(f"{NAME}*"):
        with contextlib.suppress(OSError), _locked(folder):
            shutil.rmtree(folder)
    workspace.mkdir(parents=True, exist_ok=True)
    created = Path(mkdtemp(prefix=f".{NAME}", dir=workspace))
    with _locked(created):  # before it has the name that other runs look for
        folder = created.rename(workspace / created.name.removeprefix("."))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
