"""The time of a training by cause: nothing is left out, nothing is counted twice, and restarts add up."""

import json
from pathlib import Path

import pytest

from kubetrain_trainer.reporting.time_spent import (
    CAUSES,
    MAX_GAPS,
    WRITE_SECONDS,
    TimeSpent,
    conclude,
    describe,
    read_starts,
    summarize,
)
from kubetrain_trainer.termination import MAX_BYTES


class Process:
    """A process on a clock that the test moves."""

    def __init__(self, folder: Path, started: float = 1000.0, resumed_step: int = 0) -> None:
        self.path, self.started, self.now = folder / "time.json", started, 0.0
        self.spent = TimeSpent(self.path, resumed_step, started, lambda: self.now)

    def take_steps(self, seconds: float, until: int, waited: float = 0.0, since_first_step: float = 1e9) -> None:
        self.now += seconds
        self.spent.book_steps(until, min(since_first_step, self.now))
        self.spent.book_waits({"data_wait": waited})
        self.spent.write()

    def end(self, seconds: float) -> dict[str, float]:
        self.now += seconds
        summary = conclude(self.path, self.started, lambda: self.now)
        return seconds_of(summary)


def seconds_of(summary: dict[str, object]) -> dict[str, float]:
    seconds = dict(summary["seconds"])  # type: ignore[call-overload]
    assert set(seconds) == set(CAUSES)
    return {cause: each for cause, each in seconds.items() if each}


def test_each_second_has_one_cause(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.take_steps(10, until=10, waited=2, since_first_step=6)
    process.now += 5
    process.spent.book("checkpoint", 1)
    process.spent.book("validation")
    process.take_steps(20, until=30, waited=0.5)
    expected = {"start": 4, "training": 23.5, "data_wait": 2.5, "checkpoint": 1, "validation": 4, "end": 3}
    assert process.end(3) == expected
    assert sum(expected.values()) == process.now


def test_a_wait_is_never_longer_than_the_steps(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.take_steps(10, until=1, waited=100, since_first_step=8)
    process.now += 10
    process.spent.book_steps(2, 18)
    process.spent.book_waits({"data_wait": 7, "straggler": 7})
    process.spent.write()
    assert process.end(0) == {"start": 2, "data_wait": 15, "straggler": 3}


def test_time_that_may_yet_be_a_wait_is_kept_but_not_shown(tmp_path: Path) -> None:
    process = Process(tmp_path)
    process.take_steps(10, until=10)
    process.now += 60
    process.spent.book_steps(60, 70)  # of a checkpoint, which is written before the waits of its steps are known
    process.spent.write()
    assert summarize(process.path)["seconds"]["training"] == 70
    assert process.spent.totals()["training"] == 10, "a counter that never falls"
    process.spent.book_waits({"data_wait": 55})
    assert (process.spent.totals()["training"], process.spent.totals()["data_wait"]) == (15, 55)


def test_steps_that_an_earlier_start_took_are_repeated(tmp_path: Path) -> None:
    Process(tmp_path).take_steps(10, until=30)
    resumed = Process(tmp_path, started=1050.0, resumed_step=20)
    resumed.take_steps(4, until=24, waited=1)
    resumed.take_steps(12, until=36, waited=3)
    summary = summarize(tmp_path / "time.json")
    # Of the second report's twelve steps, six are new.
    assert seconds_of(summary) == {"training": 10 + 4.5, "repeated": 4 + 6, "data_wait": 1.5, "not_running": 40}
    assert (summary["began"], summary["ended"], summary["gaps"]) == (1000, 1066, [(1010, 1050)])


def test_steps_are_repeated_up_to_the_furthest_start_even_if_another_one_ended_before_it(tmp_path: Path) -> None:
    Process(tmp_path).take_steps(30, until=30)
    Process(tmp_path, started=1030.0, resumed_step=20).take_steps(5, until=25)
    resumed = Process(tmp_path, started=1035.0, resumed_step=20)
    resumed.take_steps(20, until=40)
    assert resumed.end(0) == {"training": 30 + 10, "repeated": 5 + 10}


def test_a_killed_process_keeps_what_it_wrote(tmp_path: Path) -> None:
    killed = Process(tmp_path)
    killed.take_steps(10, until=5)
    killed.now += 100
    resumed = Process(tmp_path, started=1200.0, resumed_step=5)
    resumed.take_steps(1, until=6)
    assert resumed.end(0) == {"training": 11, "not_running": 190}
    assert [start.step for start in read_starts(tmp_path / "time.json")] == [5, 6]


def test_a_start_that_finds_the_training_finished_adds_only_itself(tmp_path: Path) -> None:
    Process(tmp_path).take_steps(10, until=5)
    assert seconds_of(conclude(tmp_path / "time.json", 1020.0, lambda: 2.0)) == {
        "training": 10,
        "not_running": 10,
        "end": 2,
    }


def test_clocks_that_differ_make_no_negative_time(tmp_path: Path) -> None:
    Process(tmp_path).take_steps(10, until=5)
    resumed = Process(tmp_path, started=1009.0, resumed_step=5)
    resumed.take_steps(1, until=6)
    assert resumed.end(0) == {"training": 11}


def test_writes_are_rare(tmp_path: Path) -> None:
    process = Process(tmp_path)
    written = 0
    for step in range(1, 101):
        process.now += WRITE_SECONDS / 10
        process.spent.book_steps(step, process.now)
        written += process.spent.write(WRITE_SECONDS)
    assert written == 10


def test_a_summary_fits_into_a_termination_message(tmp_path: Path) -> None:
    for number in range(2 * MAX_GAPS):  # each gap is shorter than the one before
        Process(tmp_path, started=1.7e9 + 100.123 * number).take_steps(10.123456 + number / 10, until=number)
    summary = summarize(tmp_path / "time.json")
    assert len(summary["gaps"]) == MAX_GAPS
    assert summary["gaps"][0][0] == pytest.approx(1.7e9 + 10.123), "the longest ones, the oldest first"
    assert sum(end - begin for begin, end in summary["gaps"]) < summary["seconds"]["not_running"]
    result = {"status": "completed", "step": 10**9, "checkpoint": "step-1000000000", "manifest_sha256": "0" * 64}
    assert len(json.dumps({**result, "time": summary})) < MAX_BYTES / 2


def test_a_sentence_names_the_largest_parts_first(tmp_path: Path) -> None:
    Process(tmp_path).take_steps(100, until=5, waited=25, since_first_step=99.9)
    assert describe(tmp_path / "time.json") == "time until the last report: 100 s (training 75%, data wait 25%)"


def test_a_training_that_reported_nothing_has_no_summary(tmp_path: Path) -> None:
    assert summarize(tmp_path / "time.json") == {}
    assert not describe(tmp_path / "time.json")


@pytest.mark.parametrize(
    "content",
    [
        *("", "[{", "{}", "[1]", '[{"begun": 1}]', '[{"started": 1, "step": 1, "seconds": [2]}]'),
        *('[{"started": NaN, "step": 1, "seconds": {}}]', '[{"started": 1, "step": null, "seconds": {"end": 2}}]'),
    ],
)
def test_a_damaged_file_fails_no_training(content: str, tmp_path: Path) -> None:
    (tmp_path / "time.json").write_text(content)
    assert summarize(tmp_path / "time.json") == {}
    assert Process(tmp_path).end(2) == {"end": 2}


def test_a_file_that_cannot_be_written_for_a_while_does_not_end_the_training(tmp_path: Path) -> None:
    process = Process(tmp_path / "later")
    process.now = 2.0
    process.spent.book("start")
    assert not process.spent.write()
    (tmp_path / "later").mkdir()
    process.now = 3.0
    process.spent.book("training")
    assert process.spent.write()
    assert seconds_of(summarize(process.path)) == {"start": 2, "training": 1}


def test_a_file_that_cannot_be_written_does_not_fail_a_training_that_has_succeeded(tmp_path: Path) -> None:
    assert seconds_of(conclude(tmp_path / "removed" / "time.json", 1000.0, lambda: 2.0)) == {"end": 2}
