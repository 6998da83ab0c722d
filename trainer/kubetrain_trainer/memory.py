"""The memory that this process may still use."""

import re
from pathlib import Path

CONTAINER = Path("/sys/fs/cgroup")
MACHINE = Path("/proc/meminfo")


def free_memory(container: Path = CONTAINER, machine: Path = MACHINE) -> int | None:
    """Return the bytes that its container and the machine have left, or None if neither says so."""
    known = [free for free in (_free_in_container(container), _free_on_machine(machine)) if free is not None]
    return min(known, default=None)


def _free_in_container(container: Path) -> int | None:
    try:
        limit, used = (int((container / name).read_text()) for name in ("memory.max", "memory.current"))
        reclaimable = _number(r"^inactive_file (\d+)$", container / "memory.stat")
    except (OSError, ValueError):  # not in a container, or "max"
        return None
    return limit - used + (reclaimable or 0)


def _free_on_machine(machine: Path) -> int | None:
    try:
        kilobytes = _number(r"^MemAvailable:\s+(\d+) kB$", machine)
    except OSError:  # not on Linux
        return None
    return kilobytes * 1024 if kilobytes is not None else None


def _number(pattern: str, path: Path) -> int | None:
    found = re.search(pattern, path.read_text(), re.MULTILINE)
    return int(found[1]) if found else None
