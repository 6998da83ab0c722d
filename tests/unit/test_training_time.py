"""The account of a training: each second has one cause, whatever is known of its pods and of the trainer's own time."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job_state import JobTimes, PodTimes
from kubetrain_components.run.training_time import (
    CAUSES,
    TrainingTime,
    describe_cost,
    summarize_time,
    time_rows,
    training_time,
)
from kubetrain_trainer.reporting import time_spent
from unit.test_pod_times import at, recorded

DOCS = (Path(__file__).parents[2] / "docs" / "tracking.md").read_text()


def pod(created: float, scheduled: float, started: float, ended: float = 0.0, **more: Any) -> PodTimes:
    return PodTimes(created=created, scheduled=scheduled, started=started, ended=ended, **more)


def spent(*runs: tuple[float, float], **seconds: float) -> dict[str, Any]:
    """Return the trainer's summary of these runs, whose time is training unless a cause is given."""
    gaps = [(before[1], after[0]) for before, after in pairwise(runs)]
    training = sum(ended - began for began, ended in runs) - sum(seconds.values())
    not_running = sum(ended - began for began, ended in gaps)
    causes = {**seconds, "training": training, "not_running": not_running}
    return {"began": runs[0][0], "ended": runs[-1][1], "seconds": causes, "gaps": gaps}


def account(times: JobTimes, summary: dict[str, Any]) -> dict[str, float]:
    time = training_time(times, summary)
    known = [summary["began"], summary["ended"]] if summary else []
    moments = [times.created, *known, *(each for pod in times.pods for each in (pod.created, pod.ended))]
    moments = [each for each in moments if each]
    assert time.total == pytest.approx(max(moments) - min(moments))
    return dict(time.seconds)


def test_the_time_before_the_first_step_is_queue_image_and_start() -> None:
    pods = (pod(60, 100, 130, 300, gpus=2), pod(60, 110, 125, 301, gpus=2))
    time = account(JobTimes(created=50, pods=pods), spent((140, 298), start=8, data_wait=20))
    assert time == {"queue": 60, "image": 20, "start": 10 + 8, "training": 130, "data_wait": 20, "end": 3}


def test_gpu_hours_count_from_when_pods_have_nodes_until_they_end() -> None:
    pods = (pod(0, 1000, 1100, 4600, gpus=4), pod(0, 2800, 2900, 4600, gpus=4), pod(0, 0, 0, gpus=4))
    time = training_time(JobTimes(created=1, pods=pods), spent((3000, 4500)))
    assert time.gpu_hours == 4 + 2
    assert describe_cost(time) == "6.00 GPU-hours"


def test_without_gpus_the_cost_is_cpu_hours_and_without_pods_unknown() -> None:
    time = training_time(JobTimes(pods=(pod(0, 0.001, 1, 1800, cpus=4),)), spent((1, 1800)))
    assert describe_cost(time) == "2.00 CPU-hours"
    assert describe_cost(training_time(JobTimes(), spent((0, 1800)))) == ""


def test_a_container_that_restarts_costs_until_it_runs_again() -> None:
    pods = (pod(0, 1, 2, 300, restarted=(120.0,)), pod(0, 1, 2, 300, restarted=(118.0,)))
    time = account(JobTimes(created=0.5, pods=pods), spent((10, 100), (130, 300), repeated=15))
    assert time["restart"] == 20
    assert time["start"] == 8 + 10
    assert time["repeated"] == 15


def test_restarts_that_the_cluster_no_longer_knows_are_restarts_still() -> None:
    pods = (pod(0, 1, 0, 300, restarted=(220.0, 260.0)),)
    time = account(JobTimes(created=0.5, pods=pods), spent((10, 100), (130, 200), (270, 300)))
    assert time["restart"] == 30 + (260 - 200)


def test_a_preempted_pod_costs_until_its_replacement_runs() -> None:
    preempted = pod(0, 1, 2, 101, was_disrupted=True)
    other = pod(0, 1, 2, 300, restarted=(125.0,))
    replacement = pod(102, 160, 180, 300)
    time = account(JobTimes(created=0.5, pods=(preempted, other, replacement)), spent((10, 100), (190, 300)))
    assert time["preemption"] == 80
    assert "restart" not in time and time["start"] == 8 + 10


def test_a_preemption_is_no_cause_of_an_earlier_or_later_restart() -> None:
    preempted = pod(0, 1, 2, 200, was_disrupted=True)
    pods = (preempted, pod(0, 1, 2, 400, restarted=(110.0, 210.0, 310.0)), pod(202, 203, 210, 400))
    time = account(JobTimes(created=0.5, pods=pods), spent((10, 100), (110, 199), (210, 300), (310, 400)))
    assert (time["preemption"], time["restart"]) == (11, 20)


def test_whole_seconds_hide_no_preemption() -> None:
    pods = (pod(0, 1, 2, 99, was_disrupted=True), pod(102, 110, 120, 300))
    assert account(JobTimes(created=0.5, pods=pods), spent((10, 99.9), (130, 300)))["preemption"] == pytest.approx(20.1)


def test_a_pod_whose_end_is_known_only_as_that_of_its_grace_period_was_preempted() -> None:
    pods = (pod(0, 1, 2, 130, was_disrupted=True), pod(102, 105, 110, 300))
    time = account(JobTimes(created=0.5, pods=pods), spent((10, 100), (115, 300)))
    assert time["preemption"] == 10
    assert "restart" not in time


def test_recorded_preemption_of_the_only_pod() -> None:
    (preempted,) = recorded("preempted").pods
    resumed = pod(at("03:20:00"), at("03:21:00"), at("03:21:05"), at("03:22:00"))
    summary = spent((at("03:17:13"), at("03:17:16")), (at("03:21:10"), at("03:22:00")))
    time = account(JobTimes(created=at("03:17:09"), pods=(preempted, resumed)), summary)
    assert time["preemption"] == at("03:21:05") - at("03:17:16")


def test_without_the_pods_of_earlier_attempts_the_time_between_is_unknown() -> None:
    """A launcher that was restarted finds only the last attempt on the cluster, and the output of all."""
    last = pod(500, 510, 520, 700)
    time = account(JobTimes(created=495, pods=(last,)), spent((10, 100), (530, 700)))
    assert time["unknown"] == 520 - 100
    assert time["start"] == 10


def test_without_any_pods_only_the_trainer_is_known() -> None:
    assert account(JobTimes(), spent((10, 100), (130, 300), end=5)) == {"training": 255, "unknown": 30, "end": 5}


def test_gaps_that_the_summary_leaves_out_are_unknown() -> None:
    summary = spent((10, 100), (130, 300))
    summary["seconds"] |= {"not_running": 37.0, "training": 253.0}
    assert training_time(JobTimes(pods=(pod(0, 1, 2, 300),)), summary).seconds["unknown"] == 7


def test_a_cause_of_a_newer_trainer_is_unknown() -> None:
    assert account(JobTimes(), spent((0.5, 10.5), cosmic_rays=4)) == {"training": 6, "unknown": 4}


def test_a_pod_that_joins_late_does_not_count_as_waiting() -> None:
    pods = (pod(0, 1, 2, 300), pod(0, 150, 160, 300))
    time = account(JobTimes(created=0.5, pods=pods), spent((10, 300)))
    assert time == {"queue": 0.5, "image": 1, "start": 8, "training": 290}


def test_a_program_without_a_report_runs_from_when_all_pods_have_started() -> None:
    pods = (pod(10, 20, 30, 200), pod(10, 50, 70, 210))
    assert account(JobTimes(created=5, pods=pods), {}) == {"queue": 45, "image": 20, "program": 140}


def test_a_program_without_a_report_that_was_preempted() -> None:
    pods = (pod(10, 20, 30, 200, was_disrupted=True), pod(230, 240, 250, 300))
    assert account(JobTimes(created=10, pods=pods), {})["preemption"] == 50


def test_nothing_known_is_nothing_said() -> None:
    time = training_time(JobTimes(), {})
    assert (time, list(summarize_time(time)), time_rows(time)) == (TrainingTime(), [], [])


def test_a_pod_that_failed_before_the_first_step_is_a_restart() -> None:
    pods = (pod(0, 1, 2, 300, restarted=(60.0,)),)
    assert account(JobTimes(created=0.5, pods=pods), spent((70, 300)))["restart"] == 58


def test_clocks_that_differ_between_nodes_take_no_time_twice() -> None:
    pods = (pod(20, 25, 40, 290),)
    time = account(JobTimes(created=20, pods=pods), spent((10, 300)))
    assert time == {"training": 290}


def test_the_summary_names_the_largest_losses_and_their_settings() -> None:
    time = TrainingTime({"queue": 600, "training": 2400, "data_wait": 500, "checkpoint": 40, "unknown": 60}, 1.5)
    assert list(summarize_time(time)) == [
        ("cost", "1.50 GPU-hours"),
        ("time", "1 h 00 min, 67% training steps"),
        ("lost", f"10 min 00 s (17%), {CAUSES['queue'].meaning}: {CAUSES['queue'].remedy}"),
        ("lost", f"8 min 20 s (14%), waiting for data: {CAUSES['data_wait'].remedy}"),
    ]


def test_losses_of_seconds_are_not_worth_a_line() -> None:
    assert len(list(summarize_time(TrainingTime({"start": 9.0, "training": 1.0})))) == 1


def test_a_trainers_causes_have_descriptions() -> None:
    assert {*time_spent.CAUSES} - {time_spent.NOT_RUNNING} <= set(CAUSES)


def test_the_docs_list_every_cause_with_its_remedy() -> None:
    for name, cause in CAUSES.items():
        assert f"| `{name}` | {cause.meaning} | {f'{cause.remedy} ' if cause.remedy else ''}|\n" in DOCS


def test_the_rows_of_a_table_follow_one_another() -> None:
    first, second = time_rows(TrainingTime({"training": 90.0, "queue": 30.0}))
    assert (first.duration, first.percent, first.percent_before) == ("30.0 s", 25, 0)
    assert (second.duration, second.percent, second.percent_before) == ("1 min 30 s", 75, 25)
