"""Checkpoints are written beside the training, one at a time by a thread of its own, while the steps go on."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

from kubetrain_trainer.checkpoint_layout import Progress, complete_checkpoints
from kubetrain_trainer.checkpoint_retention import remove_superseded
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.failures import disk_trouble, os_error_behind
from kubetrain_trainer.training_output import TrainingOutput

log = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""So long a training that failed waits for its last checkpoint: storage that hangs must not keep it from ending."""


class CheckpointWriter:
    """As a context it completes what is being written when the training ends, or fails."""

    def __init__(self, output: TrainingOutput, config: TrainConfig) -> None:
        self._output = output
        self._config = config
        self._thread = threading.Thread()
        self._step = 0
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, error_type: type[BaseException] | None, *_: object) -> None:
        if error_type is None:
            self.wait()
        elif self.is_writing:
            log.info("completing the checkpoint of step %d before the training fails", self._step)
            self._thread.join(PATIENCE_SECONDS)

    @property
    def is_writing(self) -> bool:
        return self._thread.is_alive()

    def is_free(self, step: int) -> bool:
        """Whether a checkpoint of this step can be written now; says so where it is skipped."""
        if self.is_writing:
            log.warning(
                "skipped the checkpoint of step %d: that of step %d is still being written; "
                "raise checkpoint_every where this goes on",
                step,
                self._step,
            )
            return False
        return True

    def start(self, progress: Progress, details: Mapping[str, Any], write_files: Callable[[Path], object]) -> None:
        """Begin to write; wait() comes first."""
        self._step = progress.step
        # A daemon: the interpreter ends without it where PATIENCE_SECONDS were not enough.
        self._thread = threading.Thread(target=self._write, args=(progress, details, write_files), daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Until nothing is being written any more."""
        if self.is_writing:
            self._thread.join()
        self.check()

    def check(self) -> None:
        """
        Raises:
            KubetrainError: where the last checkpoint could not be written.
        """
        if self._failure is not None:
            raise self._failure

    def conclude_stop(self) -> dict[str, Any]:
        """What a training that was asked to stop has to show, when all of it is written."""
        self.wait()
        result = self._output.stopped_result()
        saved = (result["step"], result["checkpoint"])
        log.info("stopped by SIGTERM after step %d: saved %s; start this run again to go on", *saved)
        return result

    def resume_hint(self) -> str:
        """How a run with other settings takes over from this one, its last checkpoint included."""
        if self.is_writing:
            self._thread.join(PATIENCE_SECONDS)
        newest = self._newest()
        if not newest:
            return "no checkpoint was saved before"
        return f"a new run with resume_from={self._output.path.name} goes on from {newest}"

    def _newest(self) -> str:
        complete = complete_checkpoints(self._output.checkpoints)
        return complete[-1].name if complete else ""

    def _write(self, progress: Progress, details: Mapping[str, Any], write_files: Callable[[Path], object]) -> None:
        began = time.perf_counter()
        _yield_to_steps()
        try:
            checkpoint = self._output.write_checkpoint(progress, details, write_files)
            metrics = ", ".join(f"validation_{name} {value:.4f}" for name, value in details["metrics"].items())
            seconds = time.perf_counter() - began
            log.info("saved %s in %.1f s: %s", checkpoint.name, seconds, metrics or "not validated")
            remove_superseded(checkpoint, self._config)
        except Exception as error:  # noqa: BLE001 - raised by check(), in the thread that can act on it
            self._failure = self._in_words(error)

    def _in_words(self, error: Exception) -> Exception:
        cause = os_error_behind(error)
        if cause is None:
            return error
        newest = self._newest()
        resumed = f", which resumes from {newest}" if newest else ""
        failure = KubetrainError(
            f"the checkpoint of step {self._step} could not be written to {self._output.checkpoints} "
            f"{disk_trouble(cause)}, then start this run again{resumed}"
        )
        failure.__cause__ = error
        return failure


def _yield_to_steps() -> None:
    """On Linux a thread has a priority of its own: steps on the same CPUs took 1.5 times as long without."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 10)
