"""A run's output in an object store: its folder on the disk of each pod is a copy, which a sidecar fills and keeps.

Without the variable, the folder is on storage that all pods share, and these functions do nothing. A checkpoint is
complete in the store as soon as its manifest is there, which is before its folder gets its name on the disk.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any, Callable, Sequence

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.sidecar import answered

VARIABLE = "KUBETRAIN_OUTPUT_STORE"
"""The environment variable with the folder that the sidecar keeps, which has those of all runs."""
END_SECONDS = 10.0
log = logging.getLogger(__name__)


def begin(run: Path) -> None:
    """Bring what the store has of a run. Files that manifests name get only their size: fetch() brings their bytes."""
    _ask("begin", run)


def fetch(folder: Path) -> None:
    """Bring all files of a checkpoint or export. Those that the store has lost are left to who verifies them."""
    _ask("fetch", folder)


def begin_parts(partial: Path) -> None:
    """Forget what other pods have put for this checkpoint before."""
    _ask("begin_parts", partial)


def put_part(partial: Path, names: Sequence[str] = ()) -> None:
    """Move files that this pod has written for a checkpoint of rank 0 to the store; by default, all in the folder."""
    _ask("put_part", partial, names=names)


def parts(partial: Path) -> Any:
    """Return descriptions of the files that other pods have put, by name; the folder gets files of their size."""
    return _ask("parts", partial) or {}


def publish(partial: Path, check: Callable[[], object] = int) -> None:
    """Put the files of a checkpoint or export, then check, then put the manifest that completes it.

    With it comes what else the run has written.
    """
    _ask("put", partial)
    check()
    _ask("commit", partial)


def remove(folder: Path) -> None:
    """Remove a checkpoint, its manifest first."""
    _ask("remove", folder)


def push(path: Path) -> None:
    """Let the store have this small file, or not have it, as the disk does."""
    _ask("push", path)


def pull(path: Path) -> None:
    """Let the disk have this small file, or not have it, as the store does."""
    _ask("pull", path)


def push_last(run: Path, start: str) -> None:
    """Let the store have the last rows of this start, which no checkpoint follows, if that takes seconds at most."""
    try:
        _ask("push_last", run, END_SECONDS, names=[start])
    except KubetrainError as error:
        log.warning("the store may lack the last rows of metrics.jsonl: %s", error)


def _ask(verb: str, path: Path, patience: float | None = None, **more: Any) -> Any:
    root = os.environ.get(VARIABLE)
    if not root or (name := os.path.relpath(path, root)).startswith(".."):
        return None
    request = {"do": verb, "path": name, **more}
    with answered(Path(root), request, "the store of", patience) as answer:
        return answer["result"]
