"""Enough parallel requests to hide the latency, but fewer if the store is overloaded."""

import threading
from collections.abc import Iterator

import pytest

from kubetrain_components.sync_dataset import in_flight
from kubetrain_components.sync_dataset.in_flight import MIN_REQUESTS, MIN_REQUESTS_FOR_SMALL_OBJECTS, InFlight

ASKED: list[InFlight] = []


def answer(requests: InFlight, *seconds: float) -> None:
    for each in seconds:
        requests.record_latency(each)


@pytest.mark.parametrize(("seconds", "limit"), [(0.0001, MIN_REQUESTS), (0.01, 20), (0.03, 60), (1.0, 64)])
def test_the_limit_follows_the_latency(seconds: float, limit: int) -> None:
    requests = InFlight(64)
    answer(requests, *[seconds] * 10)
    assert requests.limit == limit


def test_small_objects_of_a_fast_store_need_fewer_workers() -> None:
    requests = InFlight(64)
    requests.lower_minimum()
    answer(requests, 0.0001)
    assert requests.limit == MIN_REQUESTS_FOR_SMALL_OBJECTS < MIN_REQUESTS
    answer(requests, *[0.03] * in_flight.SAMPLES)
    assert requests.limit == 60


def test_waits_of_our_own_threads_do_not_count_as_latency() -> None:
    requests = InFlight(64)
    answer(requests, 0.05, 0.001, 0.05, 0.05)
    assert requests.limit == MIN_REQUESTS


def test_a_burst_of_refusals_halves_the_limit_once_and_responses_raise_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    requests = InFlight(64)
    answer(requests, 1.0)
    for _ in range(20):
        requests.back_off()
    assert requests.limit == 32
    answer(requests, *[1.0] * 200)
    assert 32 < requests.limit < 64
    monkeypatch.setattr(in_flight, "BURST_SECONDS", 0.0)
    for _ in range(20):
        requests.back_off()
    assert requests.limit == 1


def test_others_run_instead_of_stuck_workers() -> None:
    requests = InFlight(64)
    requests.set_stuck(2)
    assert has_turn(requests, MIN_REQUESTS + 1)
    assert not has_turn(requests, MIN_REQUESTS + 2)
    requests.set_stuck(0)
    assert not has_turn(requests, MIN_REQUESTS + 1)


def test_no_worker_runs_instead_of_a_stuck_one_if_the_store_is_overloaded() -> None:
    requests = InFlight(8)
    requests.back_off()
    requests.set_stuck(8)
    assert not has_turn(requests, MIN_REQUESTS)


@pytest.fixture(autouse=True)
def asked() -> Iterator[None]:
    yield
    while ASKED:
        ASKED.pop().end()  # whose workers still wait


def has_turn(requests: InFlight, worker: int) -> bool:
    ASKED.append(requests)
    waiting = threading.Thread(target=requests.wait_for_turn, args=(worker,), daemon=True)
    waiting.start()
    waiting.join(0.2)
    return not waiting.is_alive()


def test_workers_above_the_limit_wait_until_it_rises_or_the_work_ends() -> None:
    requests = InFlight(64)
    passed: list[int] = []

    def worker(number: int) -> None:
        requests.wait_for_turn(number)
        passed.append(number)

    threads = [threading.Thread(target=worker, args=(number,)) for number in (MIN_REQUESTS - 1, MIN_REQUESTS, 40)]
    for thread in threads:
        thread.start()
    threads[0].join(5)
    assert passed == [MIN_REQUESTS - 1]
    answer(requests, 0.01)
    threads[1].join(5)
    assert passed == [MIN_REQUESTS - 1, MIN_REQUESTS]
    requests.end()
    threads[2].join(5)
    assert passed == [MIN_REQUESTS - 1, MIN_REQUESTS, 40]
