"""The process that a job or a run on this machine belongs to, and ends with."""

from collections.abc import Mapping

import psutil


def this_process() -> dict[str, float]:
    process = psutil.Process()
    return {"pid": process.pid, "started": process.create_time()}


def is_running(owner: Mapping[str, float]) -> bool:
    """Return False also for a process that has ended, but that its parent has not waited for yet."""
    try:
        process = psutil.Process(int(owner["pid"]))
        return bool(process.create_time() == owner["started"]) and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
