"""A trace of some steps of rank 0, which shows where their time goes: `profile_steps=100:110`."""

import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig

Recording = Callable[[Path], AbstractContextManager[None]]
"""A framework's context manager that records what happens within it, and writes the trace to this place."""
log = logging.getLogger(__name__)


class Profile(ExitStack):
    def __init__(self, config: TrainConfig, output: TrainingOutput, role: ProcessRole, recording: Recording) -> None:
        super().__init__()
        self._steps = config.steps_to_profile if role.is_rank_0 else range(0)
        self._folder = output.path / "profile"
        self._recording = recording
        self._first = self._last = 0
        """The first step of the trace, and the last step that began."""

    def begin_step(self, step: int) -> None:
        """Start the trace if it is time to."""
        self._last = step
        if not self._first and step in self._steps:
            self._first = step
            self._folder.mkdir(exist_ok=True)
            self.callback(self._end)
            # Named by its own first step: what was recorded before a resumption stays.
            self.enter_context(self._recording(self._folder / f"steps-{step}-{self._steps.stop - 1}"))

    def end_step(self, step: int) -> None:
        """End the trace after its last step, before something else happens. A training that ends before ends it too."""
        if step == self._steps.stop - 1:
            self.close()

    def _end(self) -> None:
        log.info("profile of steps %d to %d: %s", self._first, self._last, self._folder)

    def __enter__(self) -> Self:
        return self
