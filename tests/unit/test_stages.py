"""The stages of a run and their pods, found in the nodes of its workflow."""

import pytest

from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import RunState
from kubetrain_pipelines.kubeflow.workflow_nodes import node_names
from support.kfp_runs import Step, workflow
from support.kfp_server import recorded_run

LOOP = "root(0)/for-loop-1(0)/iteration-item({0}:{0})(0)"


@pytest.mark.parametrize("name", ["run_succeeded", "run_failed", "run_running", "run_canceled", "run_canceling"])
def test_every_node_of_a_recorded_run_has_a_name(name: str) -> None:
    details = recorded_run(name)["run_details"]["task_details"]
    ids = {child["pod_name"] for each in details for child in each.get("child_tasks", [])}
    names = node_names(details)
    assert names.keys() == ids
    last_parts = sorted(each.rpartition(".")[2] for each in names.values())
    assert last_parts == sorted(each["display_name"] for each in details if each["display_name"] in last_parts)


def test_a_recorded_pod_belongs_to_its_stage() -> None:
    stages = Run.of(recorded_run("run_succeeded"), {"greet": "Greet", "count": "Count"}).stages
    assert [(each.title, each.attempts) for each in stages] == [
        ("Greet", ("two-steps-vh4f2-2879164306",)),
        ("Count", ("two-steps-vh4f2-2292359860",)),
    ]


def test_stages_that_run_at_the_same_time_have_their_own_pods() -> None:
    fast, slow = Step(task="fast", ended=5, attempts=2), Step(task="slow", ended=9)
    stages = Run.of(workflow([fast, slow]), {"fast": "Fast", "slow": "Slow"}).stages
    pods = {each.task: [node.rpartition("-")[2] for node in each.attempts] for each in stages}
    assert pods == {each.task: [pod.rpartition("-")[2] for pod in each.pods()] for each in (fast, slow)}


def test_each_iteration_of_a_loop_is_a_stage() -> None:
    steps = [Step(task="train", within=LOOP.format(number), started=number) for number in range(12)]
    steps[1] = Step(task="train", within=LOOP.format(1), started=1, state="RUNNING", ended=None)
    stages = Run.of(workflow(steps), {"train": "Train"}).stages
    assert [each.title for each in stages] == [f"Train (iteration {number})" for number in range(12)]
    assert [each.title for each in stages if each.state is RunState.RUNNING] == ["Train (iteration 1)"]
    assert len({each.attempts for each in stages}) == 12


def test_stages_of_one_title_in_several_places_are_told_apart() -> None:
    steps = [Step(task="train", within=f"root(0)/{part}(0)") for part in ("small", "large")]
    titles = {each.title for each in Run.of(workflow(steps), {"train": "Train"}).stages}
    assert titles == {"Train (train-x.root.small.train)", "Train (train-x.root.large.train)"}


def test_a_run_whose_version_was_deleted_has_stages() -> None:
    stages = Run.of(recorded_run("run_failed"), None).stages
    assert [(each.title, each.state.value) for each in stages] == [("greet", "succeeded"), ("fail", "failed")]


def test_what_has_not_ended_has_no_end() -> None:
    """The server gives an unknown time as one in 1970 or before."""
    run = Run.of(recorded_run("run_canceling"), None)
    assert run.ended is None
    assert None in {each.ended for each in run.stages}


def test_the_cache_entry_of_a_step_is_no_stage() -> None:
    """Recorded from 2.16.1, where Argo does not retry, so that the names of nodes have no attempts."""
    recorded = recorded_run("run_with_cache_entry")
    stages = Run.of(recorded, None).stages
    assert [(each.title, each.state.value) for each in stages] == [("greet", "succeeded"), ("fail", "failed")]
    details = recorded["run_details"]["task_details"]
    assert any("display_name" not in each for each in details)
    assert [len(each.attempts) for each in stages] == [1, 1]


def test_skipped_stages_have_not_started() -> None:
    message = recorded_run("run_failed")
    skipped = {"display_name": "count", "start_time": "2026-11-22T04:01:59Z", "end_time": "2026-11-22T04:01:59Z"}
    message["run_details"]["task_details"].append(skipped)
    stages = Run.of(message, dict.fromkeys(("greet", "fail", "count"), "")).stages
    assert [stage.task for stage in stages] == ["greet", "fail"]


def test_a_cancellation_ends_the_stages_that_ran_but_not_one_that_had_failed() -> None:
    message = recorded_run("run_canceled")
    assert message["state"] == "FAILED"
    run = Run.of(message, dict.fromkeys(("sync-dataset", "launch-training", "promote-model"), ""))
    assert [(each.task, each.state.value) for each in run.stages] == [
        ("sync-dataset", "succeeded"),
        ("launch-training", "canceled"),
    ]
    before = Step(task="greet", state="FAILED", ended=3)
    since = Step(task="count", state="FAILED", started=1, ended=5)
    unfinished = Step(task="sleep", state="RUNNING", started=2, ended=None)
    events = [{"state": "CANCELING", "update_time": "2026-11-22T04:00:05Z"}]
    message = {**workflow([before, since, unfinished], "FAILED"), "state_history": events}
    stages = Run.of(message, None).stages
    assert [each.state.value for each in stages] == ["failed", "canceled", "canceled"]


@pytest.mark.parametrize(
    ("history", "state"),
    [
        ("PENDING RUNNING FAILED", "failed"),
        ("PENDING RUNNING CANCELING FAILED", "canceled"),
        ("PENDING RUNNING CANCELING RUNNING FAILED", "canceled"),  # a report that was on its way
        ("PENDING RUNNING CANCELING FAILED RUNNING FAILED", "failed"),  # retried
        ("PENDING RUNNING FAILED RUNNING CANCELING FAILED", "canceled"),
    ],
)
def test_what_came_last_tells_a_canceled_run_from_a_failed_one(history: str, state: str) -> None:
    events = [
        {"state": each, "update_time": f"2026-11-22T04:00:{index:02}Z"} for index, each in enumerate(history.split())
    ]
    message = {**workflow([], "FAILED"), "state_history": events}
    assert Run.of(message, {}).state.value == state
