"""How threads wait for what others have changed."""

import threading
from collections.abc import Callable

from kubetrain_components.interrupts import interrupts_deferred


class Changes:
    """A condition that no interrupt can leave locked, as it does Python's own while that enters or leaves a block."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Protects what changes. A `with` statement takes this lock itself in one step."""
        self._condition = threading.Condition(self.lock)

    def notify(self) -> None:
        with self.lock:
            self._condition.notify_all()

    def wait_for(self, is_met: Callable[[], bool], seconds: float | None = None) -> bool:
        """Wait until the condition is met, for at most this long. An interrupt ends the wait, and then takes effect."""
        interrupts: list[None] = []

        def end_wait() -> None:
            interrupts.append(None)
            self.notify()

        with self.lock, interrupts_deferred(wake=end_wait):
            return self._condition.wait_for(lambda: bool(interrupts) or is_met(), seconds) and not interrupts
