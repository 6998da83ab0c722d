"""Checkpoints on disk: their names, their manifests, and how readers choose among them.

    checkpoints/step-00000123/manifest.json   with the framework's own files beside it
    checkpoints/.step-00000123.partial/       being written, ignored by readers
    checkpoints/.step-00000120.removed/       being removed, ignored by readers
    checkpoints/.step-00000123.replaced-1/    the previous checkpoint of a step that is written again; readers use it
                                              only between the two renames, while the partial one still exists

A checkpoint is complete if its manifest is intact, by a hash of its own, and all files in it exist with the recorded
sizes. The newest checkpoint is the one
with the highest step in its manifest, regardless of file names and times.
"""

from __future__ import annotations

import logging
import math
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable

from kubetrain_trainer.durable_files import flush_directory, sha256_of
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.manifest import (
    MANIFEST,
    CorruptFiles,
    describe_files,
    read_manifest,
    verify_files,
    write_manifest,
)
from kubetrain_trainer.settings.config import TrainConfig

log = logging.getLogger(__name__)

SCHEMA = "kubetrain/checkpoint/v1"
PARTIAL, REPLACED = ".partial", ".replaced"
WriteFiles = Callable[[Path], object]
"""A function that writes the framework's files to a directory."""


@dataclass(frozen=True)
class TrainingProgress:
    """The position of a training. A resumed run needs this and the framework's files, nothing else."""

    step: int = 0
    epoch: int = 0
    """Epochs completed."""
    samples_in_epoch: int = 0
    """Samples of the current epoch that all processes together have used."""
    samples_seen: int = 0

    def after_step(self, samples: int, epoch_size: int) -> TrainingProgress:
        completed, position = divmod(self.samples_in_epoch + samples, epoch_size)
        return type(self)(
            step=self.step + 1,
            epoch=self.epoch + completed,
            samples_in_epoch=position,
            samples_seen=self.samples_seen + samples,
        )


@dataclass(frozen=True)
class Checkpoint:
    path: Path
    manifest: Mapping[str, Any]

    def __fspath__(self) -> str:
        return str(self.path)

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def step(self) -> int:
        return int(self.manifest["step"])

    @property
    def progress(self) -> TrainingProgress:
        names = ("step", "epoch", "samples_in_epoch", "samples_seen")
        return TrainingProgress(**{name: int(self.manifest[name]) for name in names})

    @property
    def is_validated(self) -> bool:
        """Return True if it has metrics. A stopped training may not have enough time left to validate."""
        return bool(self.manifest["metrics"])

    @property
    def manifest_sha256(self) -> str:
        return sha256_of(self.path / MANIFEST)


def write_checkpoint(
    directory: Path,
    progress: TrainingProgress,
    details: Mapping[str, Any],
    write_files: WriteFiles,
    check: Callable[[], object] = int,
) -> Checkpoint:
    """Write the framework's files and their manifest to a partial directory, check, then rename it."""
    final = directory / f"step-{progress.step:08d}"
    partial = directory / f".{final.name}{PARTIAL}"
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    try:
        write_files(partial)
        manifest = {"schema": SCHEMA, **vars(progress), **details, "files": describe_files(partial)}
        write_manifest(partial, manifest)
        output_store.publish(partial, check)
    except Exception:
        shutil.rmtree(partial, ignore_errors=True)  # otherwise it would keep a full disk full
        raise
    _put_in_place(partial, final)
    return Checkpoint(final, manifest)


def _put_in_place(partial: Path, final: Path) -> None:
    """Rename a complete checkpoint, and keep any earlier one of this step until then: remove_partial() restores it."""
    # A unique name, because NFS may keep the files of an earlier one.
    replaced = final.with_name(f".{final.name}{REPLACED}-{time.time_ns()}")
    if final.exists():
        final.rename(replaced)
    partial.rename(final)
    flush_directory(final.parent)
    shutil.rmtree(replaced, ignore_errors=True)


def read_checkpoint(path: Path) -> Checkpoint | None:
    """Return the checkpoint at this path, or None if it is not complete."""
    try:
        checkpoint = open_checkpoint(path)
        manifest, _ = checkpoint.manifest, (checkpoint.progress, checkpoint.is_validated)
        is_complete = manifest["schema"] == SCHEMA and all(
            (path / file["name"]).stat().st_size == file["size"] for file in manifest["files"]
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return checkpoint if is_complete else None


def open_checkpoint(path: Path) -> Checkpoint:
    """Read a checkpoint that another process has already verified."""
    return Checkpoint(path, read_manifest(path))


def complete_checkpoints(directory: Path) -> list[Checkpoint]:
    """Return all complete checkpoints in the order of their steps."""
    complete = [checkpoint for path in _candidates(directory) if (checkpoint := read_checkpoint(path)) is not None]
    return sorted(complete, key=lambda checkpoint: checkpoint.step)


def _candidates(directory: Path) -> list[Path]:
    if not directory.is_dir():
        return []
    visible = [path for path in directory.iterdir() if path.is_dir() and not path.name.startswith(".")]
    return [*visible, *_half_replaced(directory).values()]


def _half_replaced(directory: Path) -> dict[Path, Path]:
    """Return the missing checkpoints whose replacement was interrupted between its two renames, with their folders."""
    written = [directory / path.name[1 : -len(PARTIAL)] for path in directory.glob(f".*{PARTIAL}")]
    found = {final: sorted(directory.glob(f".{final.name}{REPLACED}*")) for final in written if not final.exists()}
    return {final: replaced[-1] for final, replaced in found.items() if replaced}


def choose_checkpoint(directory: Path, config: TrainConfig) -> Checkpoint:
    """Return the intact checkpoint that becomes the model: the best on validation, or the last.

    Raises:
        KubetrainError: if no checkpoint is complete and intact.
    """
    complete = complete_checkpoints(directory)
    if not complete:
        raise KubetrainError(
            f"no complete checkpoint in {directory}: the training ended before its first one; check its log, or lower "
            "train.checkpoint_every"
        )
    ranked = complete[::-1] if config.select_checkpoint == "last" else best_first(complete, config)
    chosen = next(_intact(directory, ranked), None)
    if chosen is None:
        raise CorruptFiles(f"every checkpoint in {directory} is corrupt: delete this directory and train again")
    return chosen


def best_first(complete: Sequence[Checkpoint], config: TrainConfig) -> list[Checkpoint]:
    """Sort checkpoints by the metric, best first. If they are equal, the newer one comes first."""
    return sorted(complete, key=lambda checkpoint: (_score(checkpoint, config), checkpoint.step), reverse=True)


def _score(checkpoint: Checkpoint, config: TrainConfig) -> float:
    """Return a number that is greater for better checkpoints. Without a finite metric and a finite loss (the training
    was stopped or diverged), a checkpoint ranks last."""
    metrics, metric = checkpoint.manifest["metrics"], config.best_by
    if checkpoint.is_validated and metric.name not in metrics:
        raise KubetrainError(
            f"checkpoint {checkpoint.name} has no metric '{metric.name}' (it has: {', '.join(sorted(metrics))}): set "
            "train.metric to one of these, or train.select_checkpoint=last"
        )
    value, loss = metrics.get(metric.name), metrics.get("loss", 0.0)
    if value is None or loss is None:  # as JSON has them that are not finite
        return -math.inf
    return float(-value if metric.direction == "min" else value)


def intact_checkpoints(directory: Path) -> Iterator[Checkpoint]:
    """Yield the checkpoints that a training can resume from, the newest first, and log those that are not intact."""
    output_store.begin(directory.parent)
    return _intact(directory, reversed(resumable_checkpoints(directory)))


def resumable_checkpoints(directory: Path) -> list[Checkpoint]:
    """Return the complete checkpoints that have files: others only prove that a training ended."""
    return [checkpoint for checkpoint in complete_checkpoints(directory) if checkpoint.manifest["files"]]


def damaged_checkpoints(directory: Path) -> list[str]:
    """Return the names of those that a training saved, if none of them is intact."""
    found = ((path.name, read_checkpoint(path)) for path in _candidates(directory))
    return sorted(name for name, checkpoint in found if checkpoint is None or checkpoint.manifest["files"])


def _intact(directory: Path, checkpoints: Iterable[Checkpoint]) -> Iterator[Checkpoint]:
    for path in _candidates(directory):
        if path.exists() and read_checkpoint(path) is None:
            log.warning("skipping %s: files in %s are missing or incomplete", path.name, path)
    for checkpoint in checkpoints:
        try:
            verify_files(checkpoint.path, checkpoint.manifest["files"])
        except CorruptFiles as error:
            if checkpoint.path.exists():  # otherwise the training has just removed it
                log.warning("skipping %s: %s", checkpoint.name, error)
            continue
        yield checkpoint


def remove_checkpoint(path: Path) -> None:
    """Rename the checkpoint to hide it, then delete it. remove_partial() completes interrupted removals."""
    output_store.remove(path)
    hidden = path.with_name(f".{path.name}.removed")
    shutil.rmtree(hidden, ignore_errors=True)
    path.rename(hidden)
    flush_directory(path.parent)
    shutil.rmtree(hidden, ignore_errors=True)


def remove_partial(directory: Path) -> None:
    """Delete what interrupted writes and deletions left behind, and undo a replacement that was interrupted."""
    for final, replaced in _half_replaced(directory).items():
        replaced.rename(final)
    for pattern in (f".*{PARTIAL}", ".*.removed", f".*{REPLACED}*"):
        for path in directory.glob(pattern):
            shutil.rmtree(path, ignore_errors=True)
