"""Requests that a store could not answer are tried again for minutes."""

import pytest

from kubetrain_components.object_store import retries
from kubetrain_components.object_store.retries import GIVE_UP_SECONDS, Retries, seconds_to_wait
from kubetrain_components.object_store.store import StoreUnavailable


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [1000.0]
    monkeypatch.setattr(retries.time, "monotonic", lambda: now[0])
    return now


def test_a_request_is_given_up_after_minutes_without_progress(clock: list[float]) -> None:
    request, error = Retries(), StoreUnavailable("busy")
    started, pauses = clock[0], list[float]()
    with pytest.raises(StoreUnavailable):
        while True:
            pauses.append(request.pause_after(error))
            clock[0] += pauses[-1]
    assert clock[0] - started == pytest.approx(GIVE_UP_SECONDS)
    assert pauses[0] < 0.5
    assert 4 < max(pauses) <= retries.MAX_BACK_OFF_SECONDS
    request.restart()
    assert request.pause_after(error) < 0.5


def test_the_wait_that_the_server_asks_for_is_kept_within_the_time_that_is_left(clock: list[float]) -> None:
    request = Retries()
    assert request.pause_after(StoreUnavailable("busy", retry_after=40)) == 40
    clock[0] += 40
    assert request.pause_after(StoreUnavailable("busy", retry_after=3600)) == GIVE_UP_SECONDS - 40


def test_a_server_that_was_never_reached_and_a_limit_of_attempts_end_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    assert attempts(StoreUnavailable("gone", was_reached=False)) == retries.MAX_ATTEMPTS_BEFORE_FIRST_ANSWER
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "7")
    assert attempts(StoreUnavailable("busy")) == 7


def attempts(error: StoreUnavailable) -> int:
    request = Retries()
    for number in range(1, 100):
        try:
            request.pause_after(error)
        except StoreUnavailable:
            return number
    return 100


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("120", 120),
        ("Thu, 01 Jan 2026 00:01:00 GMT", 60),
        ("Thu, 01 Jan 2020 00:01:00 GMT", 0),
        ("soon", 0),
        ("", 0),
    ],
)
def test_a_wait_is_a_number_or_a_date_by_the_clock_of_the_server(header: str, seconds: float) -> None:
    assert seconds_to_wait(header, "Thu, 01 Jan 2026 00:00:00 GMT") == seconds
