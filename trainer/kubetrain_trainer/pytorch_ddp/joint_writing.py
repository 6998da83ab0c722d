"""A checkpoint that several processes write together, each a file, in the background, beside the steps' collectives."""

import contextlib
from collections.abc import Callable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from torch import distributed as dist

from kubetrain_trainer.durable_files import flush_file
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import describe_os_error, os_error_behind
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.pytorch_ddp.group import patient_group
from kubetrain_trainer.pytorch_ddp.state_files import shard_file

MESSAGE_BYTES = 1024
WriteFile = Callable[[Path], None]


class JointWriting:
    """The processes with these ranks, from 0 on, call work() for the same checkpoints. All processes create one."""

    def __init__(self, rank: int, processes: int, timeout: timedelta) -> None:
        self._rank = rank
        self._processes = processes
        # Connections of their own, because steps use the others at the same time.
        self._group: Any = patient_group(timeout, range(processes))

    def work(
        self, writer: CheckpointWriter, progress: TrainingProgress, details: Mapping[str, Any], write_file: WriteFile
    ) -> Callable[[], None]:
        """Begin another checkpoint, when the previous one is complete. Return this process's work for it."""
        if self._rank > 0:
            return lambda: self._assist(write_file)
        return lambda: writer.write(progress, details, lambda folder: self._write_all(folder, write_file))

    def _write_all(self, folder: Path, write_file: WriteFile) -> None:
        """Write rank 0's file, and wait for those of the others.

        Raises:
            KubetrainError: if another process could not write its file.
            RuntimeError: if another process is lost.
        """
        names = [shard_file(rank, self._processes) for rank in range(self._processes)]
        for name in names:
            (folder / name).touch()  # else a network file system might show an older list of files
        output_store.begin_parts(folder)
        self._from_rank_0(str(folder))
        write_file(folder / names[0])
        for name, rank, problem in zip(names, range(self._processes), self._to_rank_0(""), strict=True):
            if problem:
                raise KubetrainError(f"rank {rank} could not write {folder / name} {problem}")

    def _assist(self, write_file: WriteFile) -> None:
        """Write this process's file where rank 0 says. Rank 0 reports what goes wrong."""
        with contextlib.suppress(RuntimeError):  # rank 0 is lost, which the main thread notices too
            folder = self._from_rank_0("")
            self._to_rank_0(_problem(write_file, Path(folder, shard_file(self._rank, self._processes))))

    def _from_rank_0(self, text: str) -> str:
        texts = [text]
        dist.broadcast_object_list(texts, 0, self._group)
        return texts[0]

    def _to_rank_0(self, text: str) -> list[str]:
        """Return the texts of all processes, if this one is rank 0. It waits for all at the same time."""
        own = torch.frombuffer(bytearray(text.encode()[:MESSAGE_BYTES].ljust(MESSAGE_BYTES)), dtype=torch.uint8)
        received = [torch.empty_like(own) for _ in range(self._processes)] if self._rank == 0 else None
        dist.gather(own, received, 0, self._group)
        return [bytes(message.tolist()).decode(errors="replace").rstrip() for message in received or ()]


def _problem(write_file: WriteFile, path: Path) -> str:
    """Write the file, and return what went wrong, if anything."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)  # on a disk of its own
        write_file(path)
        flush_file(path)
        output_store.put_part(path.parent, [path.name])
    except Exception as error:  # noqa: BLE001 - rank 0 raises it
        cause = os_error_behind(error)
        return describe_os_error(cause) if cause else f"({type(error).__name__}: {error})"
    return ""
