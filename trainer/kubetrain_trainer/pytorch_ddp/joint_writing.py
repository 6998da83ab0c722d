"""A checkpoint that several processes write together, each a file.

They tell each other in the group's store, because they write in the background, beside the steps' collectives.
"""

from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import distributed as dist

from kubetrain_trainer.checkpoint_layout import TrainingProgress
from kubetrain_trainer.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.durable_files import flush_file
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import describe_os_error, os_error_behind
from kubetrain_trainer.pytorch_ddp.state_files import part_file

PATIENCE = timedelta(days=1)
"""Storage may be slow. The main thread notices if a process is lost, in the next step or in wait_for_parts()."""
WriteFile = Callable[[Path], None]


class JointWriting:
    """The processes with these ranks, from 0 on, call work() for the same checkpoints."""

    def __init__(self, rank: int, processes: int) -> None:
        self._rank = rank
        self._processes = processes
        # A separate connection, because waiting blocks it.
        self._store = dist.group.WORLD.get_group_store().clone()  # type: ignore[union-attr]
        self._number = 0

    def work(
        self, writer: CheckpointWriter, progress: TrainingProgress, details: Mapping[str, Any], write_file: WriteFile
    ) -> Callable[[], None]:
        """Begin another checkpoint, when the previous one is complete. Return this process's work for it."""
        self._number += 1
        if self._rank > 0:
            return lambda: self._assist(write_file)
        return lambda: self._lead(writer, progress, details, write_file)

    def _lead(
        self, writer: CheckpointWriter, progress: TrainingProgress, details: Mapping[str, Any], write_file: WriteFile
    ) -> None:
        writer.write(progress, details, lambda folder: self._write_all(folder, write_file))
        self._set("folder", "")  # if the chief failed early, the others need not wait

    def _write_all(self, folder: Path, write_file: WriteFile) -> None:
        """Write the chief's file, and wait for those of the others.

        Raises:
            KubetrainError: if another process could not write its file.
        """
        names = [part_file(rank, self._processes) for rank in range(self._processes)]
        for name in names:
            (folder / name).touch()  # else a network file system might show an older list of files
        self._set("folder", str(folder))
        write_file(folder / names[0])
        for rank in range(1, self._processes):
            if problem := self._wait_for(f"written/{rank}"):
                raise KubetrainError(f"rank {rank} could not write {folder / names[rank]} {problem}")

    def _assist(self, write_file: WriteFile) -> None:
        """Write this process's file where the chief says. The chief reports what goes wrong."""
        if folder := self._wait_for("folder"):
            self._set(
                f"written/{self._rank}", _problem(write_file, Path(folder, part_file(self._rank, self._processes)))
            )

    def _set(self, key: str, value: str) -> None:
        self._store.set(self._key(key), value)

    def _wait_for(self, key: str) -> str:
        self._store.wait([self._key(key)], PATIENCE)
        return self._store.get(self._key(key)).decode()

    def _key(self, key: str) -> str:
        return f"kubetrain/checkpoint/{self._number}/{key}"


def _problem(write_file: WriteFile, path: Path) -> str:
    """Write the file, and return what went wrong, if anything."""
    try:
        write_file(path)
        flush_file(path)
    except Exception as error:  # noqa: BLE001 - the chief raises it
        cause = os_error_behind(error)
        return describe_os_error(cause) if cause else f"({type(error).__name__}: {error})"
    return ""
