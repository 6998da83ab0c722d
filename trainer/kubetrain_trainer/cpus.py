"""The CPUs that are ours, what they are and what they can do."""

import os
import platform
import re
from collections.abc import Mapping
from pathlib import Path

from kubetrain_trainer.process_role import ProcessRole

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_FACTS = Path("/proc/cpuinfo")
BF16 = re.compile(r"\b(avx512_bf16|amx_bf16|bf16)\b")
"""What x86 and Arm call their instructions for it."""
MODEL = re.compile(r"^model name[ \t]*:[ \t]*(.*?)[ \t]*$", re.MULTILINE)


def usable_cpus(quota: Path = CPU_QUOTA) -> int:
    """Those that this process may run on, and no more than its container's quota pays for."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        microseconds, period = quota.read_text().split()
        return max(1, min(allowed, int(microseconds) // int(period)))
    except (OSError, ValueError):  # not in a container, or "max"
        return allowed


def threads_of(role: ProcessRole, environment: Mapping[str, str] = os.environ) -> int:
    """As OMP_NUM_THREADS says; else this process's share, and not all that the node has: those would get in the way of
    one another."""
    return int(environment.get("OMP_NUM_THREADS") or max(1, usable_cpus() // role.local_world_size))


def have_bf16(facts: Path = CPU_FACTS) -> bool:
    return bool(BF16.search(_read(facts)))


def cpu_name(facts: Path = CPU_FACTS) -> str:
    """The processor's model where Linux tells it, else its kind."""
    model = MODEL.search(_read(facts))
    return model[1] if model else platform.machine()


def _read(facts: Path) -> str:
    """Empty outside Linux."""
    try:
        return facts.read_text()
    except OSError:
        return ""
