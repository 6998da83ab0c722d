"""The CPUs that this process may use, their model and their features."""

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from kubetrain_trainer.process_role import ProcessRole

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_FACTS = Path("/proc/cpuinfo")
BF16 = re.compile(r"\b(avx512_bf16|amx_bf16|bf16)\b")
"""The names of the bf16 instructions on x86 and Arm."""
MODEL = re.compile(r"^model name[ \t]*:[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def usable_cpus(quota: Path = CPU_QUOTA) -> int:
    """Return the number of CPUs in this process's affinity mask, limited by its container's quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        microseconds, period = quota.read_text().split()
        return max(1, min(allowed, int(microseconds) // int(period)))
    except (OSError, ValueError):  # not in a container, or "max"
        return allowed


def cpus_each(processes: int) -> int:
    """Divide the CPUs among the pod's processes."""
    return max(1, usable_cpus() // processes)


def threads_of(role: ProcessRole, environment: Mapping[str, str] = os.environ) -> int:
    """Return OMP_NUM_THREADS, or else this process's share of the CPUs, so that the pod's threads don't compete."""
    return int(environment.get("OMP_NUM_THREADS") or cpus_each(role.local_world_size))


def has_bf16(facts: Path = CPU_FACTS) -> bool:
    return bool(BF16.search(_read(facts)))


def cpu_name(facts: Path = CPU_FACTS) -> str:
    """Return the CPU model if Linux reports it, else the architecture."""
    model = MODEL.search(_read(facts))
    return model[1] if model else platform.machine()


def _read(facts: Path) -> str:
    """Return the file's text, or an empty string on systems other than Linux."""
    try:
        return facts.read_text()
    except OSError:
        return ""
