"""A process that stands still is ended, its stacks in the log: its peers would wait for it, and all would cost on."""

import contextlib
import faulthandler
import math
import signal
import sys
import threading
import time
from collections.abc import Iterator
from typing import Self

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.standstill import Standstill, find_standstill
from kubetrain_trainer.termination import end_process, report_failure

EXIT_CODE = 134
"""As of a process that aborts: a cluster may try again."""
FIRST_STEP_FACTOR = 3
"""The first step may compile."""
PEERS_FACTOR = 1.25
"""Who waits for a process that hangs gives up later than that process: only it can say where."""
MAX_LOOK_SECONDS = 1.0
BACKSTOP_SECONDS = 10.0


class Watchdog:
    """As a context it watches: after each beat the next must come in time."""

    def __init__(self, config: TrainConfig, role: ProcessRole) -> None:
        self.doing = "the first step"
        self._rank = role.rank
        self._seconds = config.nccl_timeout_seconds
        self._allowed = FIRST_STEP_FACTOR * self._seconds
        self._due = math.inf
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._due = time.monotonic() + self._allowed
        faulthandler.register(signal.SIGALRM, chain=True)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._is_over.set()
        self._thread.join()

    def beat(self, doing: str) -> None:
        """Something is done; what is being done from now on."""
        self.doing = doing
        self._allowed = self._seconds
        self._due = time.monotonic() + self._seconds

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """What is done meanwhile takes as long as it takes."""
        self._due = math.inf
        yield
        self.beat(self.doing)

    def _watch(self) -> None:
        before: Standstill | None = None
        while not self._is_over.wait(min(MAX_LOOK_SECONDS, self._seconds / 10)):
            overdue = time.monotonic() - self._due
            self._set_alarm(-overdue)
            if overdue > 0:
                standstill = find_standstill()
                # Who has just learned that a peer is lost moves, and ends by that.
                hangs_itself = standstill == before and not standstill.is_wait
                if hangs_itself or overdue > (PEERS_FACTOR - 1) * self._seconds:
                    self._end_process(standstill)
                before = standstill
        self._set_alarm(math.inf)

    def _set_alarm(self, seconds: float) -> None:
        """Where C code keeps Python's lock no thread of Python's can look any more: then the kernel ends the process,
        and faulthandler shows its stacks before."""
        grace = (PEERS_FACTOR - 1) * self._seconds + BACKSTOP_SECONDS
        signal.setitimer(signal.ITIMER_REAL, 0 if seconds == math.inf else max(seconds, 0) + grace)

    def _end_process(self, standstill: Standstill) -> None:
        faulthandler.dump_traceback(sys.__stderr__ or 2)
        sentence = (
            f"rank {self._rank} hangs: {self.doing} did not end within {self._allowed} s (nccl_timeout_seconds); "
            f"it stands in {standstill}, all stacks are in the log"
        )
        print(f"error: {sentence}", flush=True)
        report_failure(sentence, curable=True)
        end_process(EXIT_CODE)
