"""Write checkpoints in a background thread, one at a time, while the training continues."""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import describe_os_error, os_error_behind
from kubetrain_trainer.output.checkpoint_layout import (
    Checkpoint,
    TrainingProgress,
    WriteFiles,
    best_first,
    complete_checkpoints,
    remove_checkpoint,
)
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import marked_as_saving

TIMEOUT_SECONDS = 60.0
"""How long a failed training waits for its last checkpoint, so that storage that hangs cannot keep it from exiting."""
log = logging.getLogger(__name__)


class CheckpointWriter:
    """A context manager that, on exit, completes the checkpoint being written."""

    def __init__(self, output: TrainingOutput, config: TrainConfig) -> None:
        self._output = output
        self._config = config
        self._thread = threading.Thread()
        self._step = 0
        self._failure: Exception | None = None
        self.newest: Checkpoint | None = None
        """The last checkpoint that this run wrote or resumed from. Later ones are damaged: the run did not resume from
        them."""

    def __enter__(self) -> CheckpointWriter:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.wait()
        elif self.is_writing:
            log.info("completing the checkpoint of step %d before the training fails", self._step)
            self._thread.join(TIMEOUT_SECONDS)

    @property
    def is_writing(self) -> bool:
        return self._thread.is_alive()

    def is_free(self, step: int) -> bool:
        """Return True if no other checkpoint is being written. Otherwise log that this one is skipped."""
        if self.is_writing:
            log.warning(
                "skipped the checkpoint of step %d: the one of step %d is still being written; raise "
                "train.checkpoint_every if this happens often",
                step,
                self._step,
            )
            return False
        return True

    def start(self, progress: TrainingProgress, details: Mapping[str, Any], write_files: WriteFiles) -> None:
        """Start writing a checkpoint. Call wait() first."""
        self.start_thread(progress.step, lambda: self.write(progress, details, write_files))

    def start_thread(self, step: int, write: Callable[[], None]) -> None:
        """Start writing what belongs to the checkpoint of this step. Call wait() first."""
        self._step = step
        # A daemon thread, so that the interpreter can exit if writing takes longer than TIMEOUT_SECONDS.
        self._thread = threading.Thread(target=self._run, args=(write,), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the checkpoint being written is complete."""
        if self.is_writing:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """Raise the error of the last checkpoint if it could not be written."""
        if self._failure is not None:
            raise self._failure

    def conclude_stop(self) -> dict[str, Any]:
        """Complete the checkpoint of a stopped training and return the result."""
        self.wait()
        result = self._output.stopped_result(self.last())
        saved = (result["step"], result["checkpoint"])
        log.info("stopped by SIGTERM after step %d: saved %s; start this run again to resume", *saved)
        return result

    def last(self) -> Checkpoint:
        if self.newest is None:
            raise KubetrainError(f"no checkpoint has been saved in {self._output.checkpoints}: start this run again")
        return self.newest

    def resume_hint(self) -> str:
        """Explain how a new run with other settings can start from this run's newest checkpoint."""
        if self.is_writing:
            self._thread.join(TIMEOUT_SECONDS)
        if self.newest is None:
            return "no checkpoint has been saved yet"
        return f"a new run with train.resume_from={self._output.path.name} starts from {self.newest.name}"

    def _run(self, write: Callable[[], None]) -> None:
        _yield_to_steps()
        with marked_as_saving():
            write()

    def write(self, progress: TrainingProgress, details: Mapping[str, Any], write_files: WriteFiles) -> None:
        """Write a checkpoint in this thread. check() raises the error if that fails."""
        began = time.perf_counter()
        try:
            checkpoint = self.newest = self._output.write_checkpoint(progress, details, write_files)
            metrics = ", ".join(f"validation_{name} {value:.4f}" for name, value in details["metrics"].items())
            seconds = time.perf_counter() - began
            log.info("saved %s in %.1f s: %s", checkpoint.name, seconds, metrics or "not validated")
            remove_superseded(checkpoint, self._config)
        except Exception as error:  # noqa: BLE001 - check() raises it in the main thread
            self._failure = self._explained(error)

    def _explained(self, error: Exception) -> Exception:
        cause = os_error_behind(error)
        if cause is None:
            return error
        resumed = f", which resumes from {self.newest.name}" if self.newest else ""
        return KubetrainError(
            f"the checkpoint of step {self._step} could not be written to {self._output.checkpoints} "
            f"{describe_os_error(cause)}, then start this run again{resumed}"
        )


def _yield_to_steps() -> None:
    """Lower the priority of this thread if possible. Otherwise steps on the same CPUs take 1.5 times as long."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)


def remove_superseded(newest: Checkpoint, config: TrainConfig) -> None:
    """Remove the checkpoints that nothing needs any more now that a newer one is flushed and verified.

    One that cannot be removed is left to the next call, because the newer one is complete.
    """
    for checkpoint in superseded(complete_checkpoints(newest.path.parent), newest, config):
        try:
            remove_checkpoint(checkpoint.path)
        except (OSError, KubetrainError) as error:
            log.warning("cannot remove %s (%s): trying again after the next checkpoint", checkpoint.path, error)
        else:
            log.info("removed %s", checkpoint.name)


def superseded(complete: Sequence[Checkpoint], newest: Checkpoint, config: TrainConfig) -> list[Checkpoint]:
    """Return all checkpoints older than the newest `keep_checkpoints`, except the best.

    Checkpoints with a later step than the newest are ignored. They are damaged, because the training did not resume
    from them.
    """
    known = [checkpoint for checkpoint in complete if checkpoint.step <= newest.step]
    measured = [checkpoint for checkpoint in known if config.best_by.name in checkpoint.manifest["metrics"]]
    kept = known[-config.keep_checkpoints :]
    if measured:
        kept.append(best_first(measured, config)[0])
    return [checkpoint for checkpoint in known if checkpoint not in kept]
