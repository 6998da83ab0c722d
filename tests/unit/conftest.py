"""Fixtures of several units' tests."""

from collections.abc import Iterator

import pytest

from support.api_server import ApiServer


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as server:
        yield server
