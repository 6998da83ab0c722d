"""No process outlives the one that is responsible for it, however that one ends.

Every process started under a guard inherits a variable that names it. The guard is a small process of its own, which
notices by a pipe that its starter is gone and then ends everything that carries the variable: children that began
sessions of their own (torchrun's workers do) too, which neither a process group nor a death signal would reach.
"""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator

import psutil

POLL_SECONDS = 0.02
KILL_SECONDS = 10.0


@contextlib.contextmanager
def process_guard(grace_seconds: float = 2.0) -> Iterator[dict[str, str]]:
    """The environment for the processes to guard; when the block is left, none of them is left."""
    mark = f"KUBETRAIN_GUARD_{uuid.uuid4().hex}"
    guard = subprocess.Popen(
        [sys.executable, "-m", __spec__.name, mark, str(grace_seconds)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C in the terminal must not end the guard before those it guards
    )
    try:
        yield {mark: "1"}
    finally:
        end_marked(mark, grace_seconds)
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def end_marked(mark: str, grace_seconds: float) -> None:
    """Ask every marked process to end, and after the grace period make it.

    One that the kernel holds, as a network file system that hangs makes it do, is given up: it ends when it is let go.
    """
    deadline = time.monotonic() + grace_seconds
    asked: set[int] = set()
    while (processes := marked_processes(mark)) and time.monotonic() < deadline + KILL_SECONDS:
        impatient = time.monotonic() >= deadline
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if impatient:
                    process.kill()
                elif process.pid not in asked:
                    asked.add(process.pid)
                    process.terminate()
        time.sleep(POLL_SECONDS)


def marked_processes(mark: str) -> list[psutil.Process]:
    return [process for process in psutil.process_iter() if _is_marked(process, mark)]


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return mark in process.environ()
    except psutil.Error:
        return False


def _stand_guard(mark: str, grace_seconds: float) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.buffer.read()  # returns when the starter has closed the pipe, or has died
    end_marked(mark, grace_seconds)


if __name__ == "__main__":
    _stand_guard(sys.argv[1], float(sys.argv[2]))
