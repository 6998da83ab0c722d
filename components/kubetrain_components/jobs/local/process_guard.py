"""End the processes that a process started once that process ends, even if it is killed.

Every process started under a guard inherits an environment variable that names the guard. The guard is a small separate
process. When its pipe shows that its parent is gone, it ends every process with that variable, including children in
their own sessions (such as torchrun's workers), which neither a process group nor a death signal would reach.
"""

import contextlib
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Collection, Iterable, Iterator, Sequence

import psutil

POLL_SECONDS = 0.02
KILL_TIMEOUT_SECONDS = 10.0


@contextlib.contextmanager
def process_guard(grace_seconds: float = 2.0) -> Iterator[dict[str, str]]:
    """Yield the environment that marks the processes to guard, and end them all on exit."""
    mark = f"KUBETRAIN_GUARD_{uuid.uuid4().hex}"
    guard = subprocess.Popen(
        [sys.executable, "-P", "-m", __spec__.name, mark, str(grace_seconds)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C in the terminal must not end the guard before its processes
    )
    try:
        yield {mark: "1"}
    finally:
        end_marked(mark, grace_seconds)
        assert guard.stdin is not None
        guard.stdin.close()
        guard.wait()


def end_marked(mark: str, grace_seconds: float) -> None:
    """Terminate every marked process, and kill those that are left after the grace period.

    Give up on a process that the kernel blocks, for example on a hung network file system: it ends once unblocked.
    """
    deadline = time.monotonic() + grace_seconds
    terminated: set[int] = set()
    processes: Sequence[psutil.Process] = ()
    while (processes := processes_of(mark, processes)) and time.monotonic() < deadline + KILL_TIMEOUT_SECONDS:
        must_kill = time.monotonic() >= deadline
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):
                if must_kill:
                    process.kill()
                elif process.pid not in terminated:
                    terminated.add(process.pid)
                    process.terminate()
        time.sleep(POLL_SECONDS)


def processes_of(mark: str, known: Iterable[psutil.Process] = ()) -> list[psutil.Process]:
    """Return the marked processes and their descendants, which may have cleared their environment.

    Args:
        known: Those found before, of which a descendant may have lost its parent since.
    """
    found = [process for process in known if _runs(process)]
    for process in psutil.process_iter():
        if process not in found and _runs(process) and _is_of(process, mark, {item.pid for item in found}):
            found.append(process)
    return found


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE and process.pid != os.getpid()
    except psutil.Error:
        return False


def _is_of(process: psutil.Process, mark: str, parents: Collection[int]) -> bool:
    try:
        return process.ppid() in parents or mark in process.environ()
    except psutil.Error:
        return False


def _guard(mark: str, grace_seconds: float) -> None:
    with contextlib.suppress(KeyboardInterrupt):
        sys.stdin.buffer.read()  # returns when the parent closes the pipe or dies
    end_marked(mark, grace_seconds)


if __name__ == "__main__":
    _guard(sys.argv[1], float(sys.argv[2]))
