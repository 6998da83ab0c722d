"""A watchdog that ends a process that hangs, after all have logged their stacks. Else its peers would wait forever."""

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
from kubetrain_trainer.failures import FIRST_STEP
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.stack_sample import StackSample, sample_stack
from kubetrain_trainer.termination import end_process, report_failure

EXIT_CODE = 134
"""The exit code of an aborted process, after which a retry is allowed."""
FIRST_STEP_FACTOR = 3
"""The first step may take longer, because it may compile."""
PEERS_FACTOR = 1.25
"""Peers of a hanging process time out later than it, because only that process can report where it hangs."""
MAX_STACKS_SECONDS = 5.0
"""How long a process that hangs waits for its peers to log their stacks, because they end with it."""
MAX_INTERVAL_SECONDS = 1.0
BACKSTOP_SECONDS = 10.0


class Watchdog:
    """A context manager that ends the process if the next call of beat() does not come in time."""

    def __init__(self, config: TrainConfig, role: ProcessRole, *, on_gpu: bool = False) -> None:
        self.doing = FIRST_STEP
        self._on_gpu = on_gpu
        self._rank = role.rank
        self._is_alone = role.world_size == 1
        self._seconds = config.nccl_timeout_seconds
        self._timeout: float = FIRST_STEP_FACTOR * self._seconds
        self._setting = " (nccl_timeout_seconds)"
        self._due = math.inf
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        self._due = time.monotonic() + self._timeout
        faulthandler.register(signal.SIGALRM, chain=True)
        self._thread.start()
        return self

    def __exit__(self, *unused: object) -> None:
        self._is_over.set()
        self._thread.join()

    def beat(self, doing: str) -> None:
        """Restart the timeout for the activity that begins now."""
        self.doing = doing
        self._timeout = self._seconds
        self._due = time.monotonic() + self._seconds

    @contextlib.contextmanager
    def paused(self, longest: float = math.inf) -> Iterator[None]:
        """Suspend the timeout in this context, for this many seconds at most. The activity has its whole time again
        afterwards."""
        before = self._timeout, self._setting
        self._timeout, self._setting = longest, ""
        self._due = time.monotonic() + longest
        yield
        self._timeout, self._setting = before
        self._due = time.monotonic() + self._timeout

    def _watch(self) -> None:
        before: StackSample | None = None
        while not self._is_over.wait(min(MAX_INTERVAL_SECONDS, self._seconds / 10)):
            overdue = time.monotonic() - self._due
            self._set_alarm(-overdue)
            if overdue <= 0:
                before = None
                continue
            stack = sample_stack(on_gpu=self._on_gpu, is_alone=self._is_alone)
            # Two equal samples, because a process that has just lost a peer still moves, and fails by itself.
            hangs_itself = stack == before and not stack.is_waiting
            is_over = overdue > (PEERS_FACTOR - 1) * self._seconds
            if before is None or (is_over and stack != before):
                self._log_stacks()
            if is_over or (hangs_itself and overdue > min(MAX_STACKS_SECONDS, self._seconds / 10)):
                self._end_process(stack)
            before = stack
        self._set_alarm(math.inf)

    def _set_alarm(self, seconds: float) -> None:
        """Set an alarm in case C code holds the GIL and this thread cannot run. The kernel then ends the process, after
        faulthandler has logged its stacks."""
        grace = (PEERS_FACTOR - 1) * self._seconds + BACKSTOP_SECONDS
        signal.setitimer(signal.ITIMER_REAL, 0 if seconds == math.inf else max(seconds, 0) + grace)

    def _log_stacks(self) -> None:
        print(f"rank {self._rank} has not ended {self.doing} within {self._timeout} s; its stacks:", flush=True)
        faulthandler.dump_traceback(sys.__stderr__ or 2)

    def _end_process(self, stack: StackSample) -> None:
        sentence = (
            f"rank {self._rank} hangs: {self.doing} did not end within {self._timeout} s{self._setting}; "
            f"it is in {stack}, all stacks are in the log"
        )
        print(f"error: {sentence}", flush=True)
        report_failure(sentence, curable=True)
        end_process(EXIT_CODE)
