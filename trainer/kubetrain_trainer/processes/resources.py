"""The CPUs, the memory, the generation of the GPUs and the node of this process."""

from __future__ import annotations

import ctypes
import os
import platform
import re
import socket
from collections.abc import Mapping
from pathlib import Path

from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig

CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")
CPU_FACTS = Path("/proc/cpuinfo")
BF16 = re.compile(r"\b(avx512_bf16|amx_bf16|bf16)\b")
"""The names of the bf16 instructions on x86 and Arm."""
MODEL = re.compile(r"^model name[ \t]*:[ \t]*(.*?)[ \t]*$", re.MULTILINE)
CGROUP = Path("/sys/fs/cgroup")
MEMORY_FACTS = Path("/proc/meminfo")
AMPERE = (8, 0)
"""The compute capability of the first GPUs with bf16 and TF32."""
NODE_VARIABLE = "NODE_NAME"
"""The environment variable that Kubernetes sets in the pods of trainings."""
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAX_KEPT_BYTES = 1 << 30
MIN_RETURNED_BYTES = 1 << 20
NEVER = -1


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


def free_memory(container: Path = CGROUP, machine: Path = MEMORY_FACTS) -> int | None:
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


def with_tf32(precision: str, config: TrainConfig, capability: tuple[int, int]) -> str:
    """Describe the precision of GPUs with this capability, for the banner."""
    return f"{precision} with TF32" if config.precision != "fp32" and capability >= AMPERE else precision


PEAKS = {
    **{"B200": 2250e12, "H200 NVL": 835e12, "H200": 989e12, "H100 PCIe": 756e12, "H100 NVL": 835e12, "H100": 989e12},
    **{"A100": 312e12, "L40S": 362e12, "L4": 121e12, "V100": 125e12, "T4": 65e12},
}
"""The most operations per second in bf16 or fp16, by words of the GPU's name, from the data sheets."""


def peak_operations(name: str) -> float:
    """Return the most operations per second of a GPU with this name; 0: unknown, as of a part of a GPU."""
    if "MIG" in name:
        return 0.0
    return next((peak for part, peak in PEAKS.items() if re.search(rf"\b{part}\b", name)), 0.0)


def node_name() -> str:
    """Return the name of this process's node, by which warnings name it; outside Kubernetes, that of its host."""
    return os.environ.get(NODE_VARIABLE) or socket.gethostname()


def keep_freed_memory() -> None:
    """Keep memory that is freed, because the next step needs as much again.

    By default, glibc returns large blocks to the kernel, which clears all their pages again at each step. That took a
    third of the time of a ResNet-50 on CPUs.
    """
    _set_allocator({M_MMAP_THRESHOLD: MAX_KEPT_BYTES, M_TRIM_THRESHOLD: NEVER})


def return_freed_memory() -> None:
    """Return freed tensors to the kernel at once.

    By default, glibc keeps those of up to 32 MB in the end. Layers of all sizes, all-gathered one after another, then
    left gaps that took a fifth of the memory.
    """
    _set_allocator({M_MMAP_THRESHOLD: MIN_RETURNED_BYTES})


def _set_allocator(options: Mapping[int, int]) -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # only glibc has it
        for option, value in options.items():
            libc.mallopt(option, value)
