"""A watchdog that ends a process that hangs, after all have logged their stacks. Else its peers would wait forever.

It watches from before the processes meet until the last step.
"""

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
START = "the start"
START_FACTOR = 12
"""Each part of the start may take much longer: a process may download weights, or wait for one that does."""
MIN_CPU_SHARE = 0.01
"""A process that uses more of a CPU than this while it starts does not hang: it may list millions of files."""
HOLDS_GIL = (
    "hangs: C code has held Python's lock (GIL) longer than nccl_timeout_seconds allows; its line is in the stacks in "
    "the log"
)
"""What to say of a process that the alarm has killed, because it cannot say it itself."""
FIRST_STEP_FACTOR = 3
"""The first step may take longer, because it may compile."""
PEERS_FACTOR = 1.25
"""Peers of a hanging process time out later than it, because only that process can report where it hangs."""
MAX_STACKS_SECONDS = 5.0
"""How long a process that hangs waits for its peers to log their stacks, because they end with it."""
MAX_INTERVAL_SECONDS = 1.0
BACKSTOP_SECONDS = 10.0
STORAGE_SECONDS = 7200.0
"""How long a process waits for what another one reads or writes, whose node may be lost silently."""


class Watchdog:
    """A context manager that ends the process if the next call of beat() does not come in time."""

    def __init__(self, config: TrainConfig, role: ProcessRole, *, on_gpu: bool = False) -> None:
        self.doing, self._timeout = START, 0.0
        self._on_gpu = on_gpu
        self._rank = role.rank
        self._is_alone = role.world_size == 1
        self._seconds = config.nccl_timeout_seconds
        self._setting = " (nccl_timeout_seconds)"
        self._due = math.inf
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Self:
        faulthandler.register(signal.SIGALRM, chain=True)
        self._thread.start()
        self.beat_start()
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    def close(self) -> None:
        self._is_over.set()
        self._thread.join()

    def beat(self, doing: str) -> None:
        """Restart the timeout for the activity that begins now."""
        self.doing = doing
        self._restart(self._seconds)

    def beat_start(self) -> None:
        """Restart the timeout for the next part of the start."""
        self.doing = START
        self._restart(START_FACTOR * self._seconds)

    def beat_first_step(self) -> None:
        self.doing = FIRST_STEP
        self._restart(FIRST_STEP_FACTOR * self._seconds)

    @contextlib.contextmanager
    def paused(self, longest: float = math.inf) -> Iterator[None]:
        """Suspend the timeout in this context, for this many seconds at most. The activity has its whole time again
        afterwards."""
        before = self._timeout, self._setting
        self._setting = ""
        self._restart(longest)
        yield
        timeout, self._setting = before
        self._restart(timeout)

    def _restart(self, timeout: float) -> None:
        self._timeout = timeout
        self._due = time.monotonic() + timeout
        self._set_alarm(timeout)

    def _watch(self) -> None:
        before: StackSample | None = None
        interval = min(MAX_INTERVAL_SECONDS, self._seconds / 10)
        used = _cpu_seconds_of_others()
        while not self._is_over.wait(interval):
            used_before, used = used, _cpu_seconds_of_others()
            if self.doing == START and used - used_before > MIN_CPU_SHARE * interval:
                self._due = time.monotonic() + self._timeout
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
        if not self._thread.is_alive():
            return
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


def _cpu_seconds_of_others() -> float:
    """Return the CPU time of this process's other threads."""
    return time.process_time() - time.thread_time()
