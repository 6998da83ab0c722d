"""Retry requests that a store could not answer."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from kubetrain_components.object_store.store import StoreUnavailable

ATTEMPTS = 4
FIRST_BACK_OFF_SECONDS = 0.5

T = TypeVar("T")


def with_retries(request: Callable[[], T]) -> T:
    """
    Raises:
        StoreUnavailable: if the last attempt fails.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return request()
        except StoreUnavailable:
            time.sleep(random.uniform(0.5, 1) * FIRST_BACK_OFF_SECONDS * attempt)
    return request()
