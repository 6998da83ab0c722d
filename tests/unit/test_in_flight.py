"""As many parallel requests as throughput gains from, but fewer if the store is overloaded."""

import threading
import time
from collections.abc import Callable

import pytest

from kubetrain_components.sync_dataset import in_flight
from kubetrain_components.sync_dataset.in_flight import MIN_REQUESTS, MIN_REQUESTS_FOR_SMALL_OBJECTS, InFlight

STEP_SECONDS = 0.0505
"""A little more than half a window, so that rounding does not decide how many steps a window has."""
WAIT_SECONDS = 0.2
"""After this, what has not happened does not."""
Store = Callable[[int], float]
"""Objects per second with this number of requests at a time."""


def after(seconds: float, most: float = 2000.0) -> Store:
    """A store that answers after some time; above `most` objects per second, our own work is the limit."""
    return lambda requests: min(requests / seconds, most)


class Sync:
    """Objects that arrive as a store delivers them, on a clock that only the test moves."""

    def __init__(self, requests: InFlight) -> None:
        self.requests = requests
        self.completed, self.now = 0.0, time.monotonic()

    def run(self, store: Store, seconds: float) -> None:
        for _ in range(round(seconds / STEP_SECONDS)):
            self.completed += STEP_SECONDS * store(self.requests.limit)
            self.now += STEP_SECONDS
            self.requests.steer(self.now, int(self.completed), int(self.completed) * 100_000)


def searching(store: Store, seconds: float = 10.0, maximum: int = 64) -> Sync:
    sync = Sync(InFlight(maximum, MIN_REQUESTS_FOR_SMALL_OBJECTS))
    sync.run(store, seconds)
    return sync


def test_latency_is_hidden_within_a_second() -> None:
    assert searching(after(0.03), 1.0).requests.limit >= 60
    assert searching(after(0.3), 2.0).requests.limit >= 60


@pytest.mark.parametrize(("seconds", "fewest", "most"), [(0.0005, 2, 3), (0.002, 3, 7), (0.01, 16, 32), (1.0, 60, 64)])
def test_no_more_requests_than_throughput_gains_from(seconds: float, fewest: int, most: int) -> None:
    sync = searching(after(seconds), 20)
    limits = set[int]()
    for _ in range(100):
        sync.run(after(seconds), STEP_SECONDS)
        limits.add(sync.requests.limit)
    assert fewest <= sorted(limits)[len(limits) // 2] <= most


def test_a_store_that_becomes_slower_gets_more_requests() -> None:
    sync = searching(after(0.001))
    assert sync.requests.limit < 10
    sync.run(after(0.05), 10)
    assert sync.requests.limit >= 40


def test_a_number_that_the_user_chose_is_used() -> None:
    sync = Sync(InFlight(20, is_fixed=True))
    assert sync.requests.limit == 20
    sync.run(after(0.0005), 5)
    assert sync.requests.limit == 20


def test_large_objects_are_searched_by_bytes() -> None:
    requests = InFlight(64)
    now, received = time.monotonic(), 0.0
    for _ in range(200):
        received += STEP_SECONDS * min(requests.limit * 20e6, 600e6)
        now += STEP_SECONDS
        requests.steer(now, 0, int(received))
    assert 20 <= requests.limit <= 48


def test_a_burst_of_refusals_halves_the_limit_once_and_responses_raise_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sync = searching(after(1.0))
    before = sync.requests.limit
    assert before > 40
    for _ in range(20):
        sync.requests.back_off()
    halved = sync.requests.limit
    assert halved == before // 2
    sync.run(after(1.0), 3)
    assert halved < sync.requests.limit < before
    monkeypatch.setattr(in_flight, "BURST_SECONDS", 0.0)
    for _ in range(20):
        sync.requests.back_off()
    assert sync.requests.limit == 1


def test_others_run_instead_of_stuck_workers() -> None:
    requests = InFlight(64)
    requests.set_stuck(2)
    assert turn_of(MIN_REQUESTS + 1, requests).wait(60)
    one_more = turn_of(MIN_REQUESTS + 2, requests)
    assert not one_more.wait(WAIT_SECONDS)
    requests.set_stuck(3)
    assert one_more.wait(60)
    requests.set_stuck(0)
    assert not turn_of(MIN_REQUESTS + 1, requests).wait(WAIT_SECONDS)
    requests.end()


def test_no_worker_runs_instead_of_a_stuck_one_if_the_store_is_overloaded() -> None:
    requests = InFlight(8)
    requests.back_off()
    requests.set_stuck(8)
    assert not turn_of(MIN_REQUESTS, requests).wait(WAIT_SECONDS)
    requests.end()


def turn_of(worker: int, requests: InFlight) -> threading.Event:
    """Set when the worker may run."""
    has_turn = threading.Event()

    def wait() -> None:
        requests.wait_for_turn(worker)
        has_turn.set()

    threading.Thread(target=wait, daemon=True).start()
    return has_turn


def test_workers_above_the_limit_wait_until_it_rises_or_the_work_ends() -> None:
    requests = InFlight(16)
    first, second, last = (turn_of(number, requests) for number in (MIN_REQUESTS - 1, MIN_REQUESTS, 40))
    assert first.wait(60)
    assert not second.wait(WAIT_SECONDS)
    Sync(requests).run(after(0.03), 1)
    assert second.wait(60)
    assert not last.wait(WAIT_SECONDS)
    requests.end()
    assert last.wait(60)
