"""Which processes count as slow, why, and when that is reported."""

import logging

import pytest

from kubetrain_pipelines.diagnose.scan import LogScan
from kubetrain_trainer.reporting.own_time import StepTimes
from kubetrain_trainer.reporting.stragglers import MAX_NAMED, WINDOW_SECONDS, WINDOWS, Stragglers, delays, idle_share

NODES = ["a", "b", "c"]


def times(data: float, computing: float, step: float, steps: int = 10) -> StepTimes:
    """Return the times of a process whose steps of this length have these parts."""
    parts = (data, step - data - computing, step)
    return StepTimes(steps, *(steps * each for each in parts))


@pytest.mark.parametrize(
    ("data", "computing", "slow"),
    [
        ([0.0, 0.0, 0.0], [1.0, 1.0, 1.0], ["", "", ""]),
        ([0.0, 0.5, 0.0], [1.0, 1.0, 1.0], ["", "data", ""]),
        ([0.0, 0.0, 0.1], [1.0, 1.0, 1.4], ["", "", "computation"]),
        ([0.5, 0.5, 0.5], [1.0, 1.0, 1.0], ["", "", ""]),  # slow data, but alike
        ([0.0, 0.5, 0.0], [1.0, 0.5, 1.0], ["", "", ""]),  # nobody waits for it
        ([0.0, 0.3, 0.0], [1.0, 1.0, 1.0], ["", "", ""]),  # too little
    ],
)
def test_a_process_is_slow_if_the_others_wait_for_it(
    data: list[float], computing: list[float], slow: list[str]
) -> None:
    step = 2.0
    found = delays([times(*each, step) for each in zip(data, computing, strict=True)], NODES)
    assert [delay.state for delay in found] == slow
    assert [delay.rank for delay in found] == [0, 1, 2]


def test_of_two_processes_the_slower_one_is_slow() -> None:
    fast, slow = delays([times(0, 1, 4), times(0, 3, 4)], NODES)
    assert (fast.share, slow.share) == (0, 0.5)


def test_only_data_tells_processes_apart_if_their_waiting_is_unknown() -> None:
    unknown = [StepTimes(steps=10, data=data, waiting=0, total=20) for data in (1, 9, 1)]
    assert [delay.state for delay in delays(unknown, NODES)] == ["", "data", ""]
    assert idle_share(unknown) == round(11 / 60, 4)


def test_a_report_without_steps_of_every_process_tells_nothing() -> None:
    assert delays([times(0, 1, 2), StepTimes()], NODES) == []
    assert idle_share([StepTimes()]) == 0


def test_a_delay_names_the_node_the_part_and_the_remedy() -> None:
    found = delays([times(0.1, 1, 2), times(0.6, 1, 2), times(0.1, 1, 2)], NODES)
    assert str(found[1]) == (
        "rank 1 on node b is slow: the others wait for it 25% of the time, because its data takes 0.6 s per step "
        "(median 0.1 s): compare the disk, network and CPU load of its node with those of others"
    )


def test_diagnose_knows_the_line_of_a_slow_process() -> None:
    scan = LogScan("rank-0.log")
    scan.add(str(delays([times(0, 1, 4), times(0, 3, 4)], NODES)[1]).encode())
    assert [match.rule.name for match in scan.matches()] == ["slow-rank"]


def pair(slow_by: float, part: str = "data", seconds: float = 6.0) -> list[StepTimes]:
    """Return a window of two processes, of which rank 1 is slower by this fraction of a step of one second."""
    other = times(slow_by, 0.1, 1.0) if part == "data" else times(0.0, 0.1 + slow_by, 1.0)
    return [StepTimes(*(seconds / 10 * value for value in each)) for each in (times(0.0, 0.1, 1.0), other)]


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [message.partition(":")[0] for message in caplog.messages]
    caplog.clear()
    return found


def test_what_lasts_is_reported_once_and_again_when_it_changes(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    stragglers = Stragglers(NODES[:2])
    for _ in range(WINDOWS - 1):
        stragglers.note(pair(0.5))
    assert (lines(caplog), stragglers.named()) == ([], []), "it may be chance"
    for slow_by in (0.5, 0.5, 0.1, 0.6):
        stragglers.note(pair(slow_by))
    assert lines(caplog) == ["rank 1 on node b is slow"]
    assert stragglers.named() == [{"rank": 1, "node": "b", "part": "data", "delay_share": 0.6}]
    for _ in range(WINDOWS):
        stragglers.note(pair(0.3, "computation"))
    assert lines(caplog) == ["rank 1 on node b is slow"]
    assert stragglers.named()[0]["part"] == "computation"
    for _ in range(WINDOWS):
        stragglers.note(pair(0.0))
    assert lines(caplog) == ["rank 1 on node b is no longer slow"]
    assert stragglers.named() == []


def test_chance_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    stragglers = Stragglers(NODES[:2])
    for slow_by in (0.5, 0.5, 0.0) * 9:
        stragglers.note(pair(slow_by))
    for slow_by in (0.7, 0.0, 0.0, 0.0, 0.0) * 20:
        stragglers.note(pair(slow_by, seconds=1.0))
    assert lines(caplog) == []


def test_short_reports_are_judged_together(caplog: pytest.LogCaptureFixture) -> None:
    stragglers = Stragglers(NODES[:2])
    for slow_by in (0.9, 0.0) * round(WINDOWS * WINDOW_SECONDS):
        stragglers.note(pair(slow_by, seconds=0.5))
    assert lines(caplog) == ["rank 1 on node b is slow"]


def test_only_the_slowest_of_many_are_named(caplog: pytest.LogCaptureFixture) -> None:
    ranks = range(100)
    stragglers = Stragglers([f"node-{rank}" for rank in ranks])
    for _ in range(WINDOWS):
        stragglers.note([times(0.3 + rank / 1000 if rank > 60 else 0.0, 0.1, 1.0) for rank in ranks])
    assert len(lines(caplog)) == MAX_NAMED
    assert [each["rank"] for each in stragglers.named()] == [*range(99, 99 - MAX_NAMED, -1)]


def test_the_time_lost_to_slow_computation_counts_once_it_is_known() -> None:
    stragglers = Stragglers(NODES)

    def lost(measured: list[StepTimes]) -> float:
        return stragglers.lost_seconds(delays(measured, NODES), measured)

    slow = [times(0, 1, 2), times(0, 2, 2), times(0, 1, 2)]
    assert lost(slow) == 0
    for _ in range(WINDOWS):
        stragglers.note(slow)
    assert lost(slow) == pytest.approx(10)  # half of ten steps of two seconds
    assert lost([times(0, 1, 2)] * 3) == 0
    assert lost([times(0, 1, 3), times(1, 1, 3), times(0, 1, 3)]) == 0  # is lost by waiting for data
