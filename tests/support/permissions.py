"""File permissions that bind root too, which tests in containers often run as."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

LIBC = ctypes.CDLL(None, use_errno=True)
VERSION_3 = 0x20080522
OVERRIDES = 1 << 1 | 1 << 2
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH."""


@contextmanager
def obeyed_permissions() -> Iterator[None]:
    """Run the block, and threads that it starts, without the capabilities to ignore permissions."""
    caller, sets = (ctypes.c_uint32 * 2)(VERSION_3, 0), (ctypes.c_uint32 * 6)()
    assert LIBC.capget(caller, sets) == 0
    effective = sets[0]
    sets[0] &= ~OVERRIDES
    assert LIBC.capset(caller, sets) == 0
    try:
        yield
    finally:
        sets[0] = effective
        assert LIBC.capset(caller, sets) == 0
