"""All processes stop after the same step, whichever of them was asked to.

They agree through the group's store, in a thread beside the steps: to ask one another at each step would cost a small
model every twentieth of its speed.
"""

import contextlib
import threading
from types import TracebackType
from typing import Self

from torch import distributed as dist

from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.stop_signal import StopSignal

POLL_SECONDS = 0.2
PATIENCE_SECONDS = 10.0
"""For the others' answers, which their threads give at once: who gives none is lost, and the next step fails."""
ASKED, LAST_STEP = "kubetrain/stop/asked", "kubetrain/stop/last"


class Stop:
    """As a context for the time of the steps: hears a request to this process, and learns of those to others."""

    def __init__(self, role: ProcessRole) -> None:
        self._signal = StopSignal()
        self._role = role
        self._others_know = False
        self._step_begun = 0
        self._last_step: int | None = None
        self._lock = threading.Lock()
        self._is_agreed = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._agree, name="stop", daemon=True)

    def __enter__(self) -> Self:
        self._signal.__enter__()
        if self._role.world_size > 1:
            # A connection of its own: on the group's a slow process may be awaited.
            self._store = dist.group.WORLD.get_group_store().clone()  # type: ignore[union-attr]
            self._thread.start()
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._signal.__exit__(error_type, error, trace)

    @property
    def is_asked(self) -> bool:
        """Whether to hurry: this process was asked, or knows that another was."""
        return self._signal.is_asked or self._others_know

    def is_due(self, step: int) -> bool:
        """Whether all stop after this step; to be asked after each, before the next is begun."""
        if self._role.world_size == 1:
            return self._signal.is_asked
        with self._lock:
            if not self._others_know:
                self._step_begun = step + 1
                return False
        self._is_agreed.wait(PATIENCE_SECONDS)
        return self._last_step is not None and step >= self._last_step

    def _agree(self) -> None:
        with contextlib.suppress(dist.DistError):  # a process is lost: the step that all take together fails
            if self._learn(ASKED):
                self._settle_last_step()
        self._is_agreed.set()

    def _settle_last_step(self) -> None:
        """It is the furthest that any process has begun: the others must not leave that one alone there."""
        with self._lock:
            self._others_know = True
        self._store.set(_step_begun(self._role.rank), str(self._step_begun))
        steps_begun = [_step_begun(rank) for rank in range(self._role.world_size)]
        if self._role.is_chief and self._learn(*steps_begun):
            self._store.set(LAST_STEP, str(max(int(self._store.get(each)) for each in steps_begun)))
        if self._learn(LAST_STEP):
            self._last_step = int(self._store.get(LAST_STEP))

    def _learn(self, *keys: str) -> bool:
        """Wait until all of them are in the store; false where the steps are over before."""
        while not self._is_over.is_set():
            if self._signal.is_asked:
                self._store.set(ASKED, "")
            if self._store.check(list(keys)):
                return True
            self._is_over.wait(POLL_SECONDS)
        return False


def _step_begun(rank: int) -> str:
    return f"kubetrain/stop/{rank}"
