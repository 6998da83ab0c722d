"""Fixtures of several units' tests."""

import threading
import time
from collections.abc import Iterator

import pytest

from support.api_server import ApiServer
from support.jobs import MemoryBackend

LAST_STEPS_SECONDS = 60.0
"""For threads that were told to end: more than any takes, even on a loaded machine."""


@pytest.fixture(autouse=True)
def no_thread_outlives_its_test() -> Iterator[None]:
    """A thread left over writes into the logs, ports and folders of later tests."""
    before = set(threading.enumerate())
    yield
    MemoryBackend.end_all()
    deadline = time.monotonic() + LAST_STEPS_SECONDS
    while (left := set(threading.enumerate()) - before) and time.monotonic() < deadline:
        next(iter(left)).join(0.05)
    assert not left, "these threads outlive their test"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server
