"""The pools of urllib3, with a store of idle connections that an interrupt cannot leave locked."""

import queue
from collections import deque
from typing import Any

import urllib3


class IdleConnections:
    """A last-in-first-out queue without the locks of Python's own."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._connections: deque[Any] = deque()

    def get(self, block: bool = False, timeout: float | None = None) -> Any:
        try:
            return self._connections.pop()
        except IndexError:
            raise queue.Empty from None

    def put(self, connection: Any, block: bool = False, timeout: float | None = None) -> None:
        if len(self._connections) >= self._maxsize:
            raise queue.Full
        self._connections.append(connection)

    def qsize(self) -> int:
        return len(self._connections)


class _HttpPool(urllib3.HTTPConnectionPool):
    QueueCls = IdleConnections  # type: ignore[assignment]


class _HttpsPool(urllib3.HTTPSConnectionPool):
    QueueCls = IdleConnections  # type: ignore[assignment]


POOLS = {"http": _HttpPool, "https": _HttpsPool}
"""Classes of the pools, by the scheme of their URLs."""
