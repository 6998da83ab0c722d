"""A watchdog that ends a process that hangs, after all have logged their stacks. Else its peers would wait forever.

It watches from before the processes meet until the last step.
"""

from __future__ import annotations

import contextlib
import faulthandler
import math
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass

from kubetrain_trainer.failures import FIRST_STEP
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.termination import end_process, report_failure

COLLECTIVES = (
    "torch/distributed/",
    "torch/nn/parallel/distributed.py",
    "torch/autograd/graph.py",
    "kubetrain_trainer/pytorch_ddp/group.py",
    "tensorflow/python/eager/execute.py",
    "tensorflow/python/framework/ops.py",
)
"""Python files in which a process waits for other processes or a GPU."""
GPU_CALLS = ("-packages/torch", "kubetrain_trainer/pytorch_ddp/")
"""On a GPU, these too. The host runs ahead and, once the GPU's queue is full, waits in the next call that uses it."""
PY_FUNCTION = "tensorflow/python/ops/script_ops.py"
"""The file in which another thread runs a user's Python function while the main thread waits for it."""
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")
EXIT_CODE = 134
"""The exit code of an aborted process, after which a retry is allowed."""
START = "the start"
START_FACTOR = 12
"""Each part of the start may take much longer: a process may download weights, or wait for one that does."""
MIN_CPU_SHARE = 0.01
"""A process that uses more of a CPU than this while it starts does not hang: it may list millions of files."""
HOLDS_GIL = (
    "hangs: C code has held Python's lock (GIL) longer than train.nccl_timeout_seconds allows; its line is in the "
    "stacks in the log"
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


@dataclass(frozen=True)
class Call:
    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


@dataclass(frozen=True)
class StackSample:
    calls: tuple[Call, ...]
    """The calls on the stack, the innermost first."""
    on_gpu: bool = False
    is_alone: bool = False
    """True if no other process trains."""

    @property
    def is_waiting(self) -> bool:
        """Return True if the process waits for its GPU or for another process, which may be the one that hangs."""
        waits = any(name in self.calls[0].file for name in (*COLLECTIVES, *(GPU_CALLS if self.on_gpu else ())))
        return waits and (self.on_gpu or not self.is_alone)

    def __str__(self) -> str:
        """Return the innermost call and the innermost call outside of libraries."""
        own = next((call for call in self.calls if not call.file.startswith(LIBRARIES)), self.calls[0])
        text = str(self.calls[0]) + (f", called by {own}" if own != self.calls[0] else "")
        return text + f", where {self._waiting()}" * self.is_waiting

    def _waiting(self) -> str:
        if self.is_alone:
            return "it waits for its GPU: something that it started there does not end"
        waits = "processes wait for each other" + " or for their GPU" * self.on_gpu
        return f"{waits}: look for another process that hangs"


def sample_stack(*, on_gpu: bool, is_alone: bool) -> StackSample:
    """Sample the stack of the thread that does the training's current work."""
    main = threading.main_thread().ident or 0
    stacks = {
        # Without source lines, because reading them could hang on the same storage.
        ident: tuple(
            Call(caller.f_code.co_name, caller.f_code.co_filename, line) for caller, line in traceback.walk_stack(frame)
        )
        for ident, frame in sys._current_frames().items()
    }
    in_py_function = (stack for stack in stacks.values() if any(PY_FUNCTION in call.file for call in stack))
    return StackSample(next(in_py_function, stacks[main]), on_gpu, is_alone)


class Watchdog:
    """A context manager that ends the process if the next call of beat() does not come in time."""

    def __init__(self, config: TrainConfig, role: ProcessRole, *, on_gpu: bool = False) -> None:
        self.doing, self._timeout = START, 0.0
        self._on_gpu = on_gpu
        self._rank = role.rank
        self._is_alone = role.world_size == 1
        self._seconds = config.nccl_timeout_seconds
        self._setting = " (train.nccl_timeout_seconds)"
        self._due = math.inf
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="watchdog", daemon=True)

    def __enter__(self) -> Watchdog:
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
