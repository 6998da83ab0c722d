"""Stop all processes after the same step when any of them receives SIGTERM.

They agree through the group's store, in a separate thread, because a collective at each step would slow down a small
model by 5%.
"""

import contextlib
import threading
from typing import Self

from torch import distributed as dist

from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.stop_signal import StopSignal

POLL_SECONDS = 0.2
ANSWER_TIMEOUT_SECONDS = 10.0
"""Processes answer immediately. If one does not, it is lost and the next step fails."""
ASKED, LAST_STEP = "kubetrain/stop/asked", "kubetrain/stop/last"


class Stop:
    """A context manager for the steps that detects SIGTERM in any process."""

    def __init__(self, role: ProcessRole) -> None:
        self._signal = StopSignal()
        self._role = role
        self._is_announced = False
        self._step_begun = 0
        self._last_step: int | None = None
        self._lock = threading.Lock()
        self._is_agreed = threading.Event()
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._agree, name="stop", daemon=True)

    def __enter__(self) -> Self:
        self._signal.__enter__()
        if self._role.world_size > 1:
            # A separate connection, because the group's connection may be blocked by a slow process.
            self._store = dist.group.WORLD.get_group_store().clone()  # type: ignore[union-attr]
            self._thread.start()
        return self

    def __exit__(self, error_type: object, error: BaseException | None, trace: object) -> None:
        self._is_over.set()
        if self._thread.is_alive():
            self._thread.join()
        self._signal.__exit__(error_type, error, trace)

    @property
    def is_requested(self) -> bool:
        """Return True if this process received SIGTERM, or knows that another one did."""
        return self._signal.is_requested or self._is_announced

    def is_due(self, step: int) -> bool:
        """Return True if all processes stop after this step. Call it after each step, before the next one begins."""
        if self._role.world_size == 1:
            return self._signal.is_requested
        with self._lock:
            if not self._is_announced:
                self._step_begun = step + 1
                return False
        self._is_agreed.wait(ANSWER_TIMEOUT_SECONDS)
        return self._last_step is not None and step >= self._last_step

    def _agree(self) -> None:
        with contextlib.suppress(dist.DistError):  # a process is lost: the next step fails
            if self._wait_for(ASKED):
                self._agree_on_last_step()
        self._is_agreed.set()

    def _agree_on_last_step(self) -> None:
        """Agree on the last step that any process has begun, because completing it needs all processes."""
        with self._lock:
            self._is_announced = True
        self._store.set(_step_begun(self._role.rank), str(self._step_begun))
        steps_begun = [_step_begun(rank) for rank in range(self._role.world_size)]
        if self._role.is_rank_0 and self._wait_for(*steps_begun):
            self._store.set(LAST_STEP, str(max(int(self._store.get(key)) for key in steps_begun)))
        if self._wait_for(LAST_STEP):
            self._last_step = int(self._store.get(LAST_STEP))

    def _wait_for(self, *keys: str) -> bool:
        """Wait until the store has all keys. Return False if the steps end first."""
        while not self._is_over.is_set():
            if self._signal.is_requested:
                self._store.set(ASKED, "")
            if self._store.check(list(keys)):
                return True
            self._is_over.wait(POLL_SECONDS)
        return False


def _step_begun(rank: int) -> str:
    return f"kubetrain/stop/{rank}"
