"""Make glibc keep freed memory, because the next step needs as much again.

By default, glibc returns large blocks to the kernel, which clears all their pages again at each step. That took a third
of the time of a ResNet-50 on CPUs.
"""

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
MAX_KEPT_BYTES = 1 << 30
NEVER = -1


def keep_freed_memory() -> None:
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):  # only glibc has it
        libc.mallopt(M_MMAP_THRESHOLD, MAX_KEPT_BYTES)
        libc.mallopt(M_TRIM_THRESHOLD, NEVER)
