"""Asking again, where a store is not at its best."""

import random
import time
from collections.abc import Callable
from typing import TypeVar

from kubetrain_components.object_store.store import StoreUnavailable

ATTEMPTS = 4
FIRST_BACK_OFF_SECONDS = 0.5

T = TypeVar("T")


def patiently(ask: Callable[[], T]) -> T:
    """What the store answers at last.

    Raises:
        StoreUnavailable: where it never does.
    """
    for attempt in range(1, ATTEMPTS):
        try:
            return ask()
        except StoreUnavailable:
            time.sleep(random.uniform(0.5, 1) * FIRST_BACK_OFF_SECONDS * attempt)
    return ask()
