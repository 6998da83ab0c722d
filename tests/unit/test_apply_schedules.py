"""`kubetrain schedule apply` and `run`: schedules from files in Git, and a run of one of them now."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_pipelines.cli.runs import start_and_show
from kubetrain_pipelines.kubeflow.apply_schedules import apply_schedules
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.find_schedules import NotOurSchedule
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound
from kubetrain_pipelines.kubeflow.schedule import Timing, create_schedule, run_schedule
from kubetrain_pipelines.kubeflow.submit import RunOptions
from kubetrain_pipelines.requests.planned_run import planned_run
from kubetrain_pipelines.requests.request_file import read_source
from kubetrain_trainer.errors import InvalidSetting
from support.api_server import answer, interrupt
from support.kfp_runs import Step, kfp_without_cluster, workflow
from support.kfp_server import KfpServer

ROOT = Path(__file__).parents[2]
NIGHTLY = {"name": "nightly", "cron": "0 0 2 * * *"}
WEEKLY = {"name": "weekly", "every": "7d"}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[KfpServer]:
    monkeypatch.chdir(ROOT)  # which has ./compiled
    with kfp_without_cluster() as server:
        yield server


@pytest.fixture
def api(server: KfpServer) -> KfpApi:
    return KfpApi(Connection(endpoint=server.endpoint, environment={}))


def described(folder: Path, schedule: object, **groups: object) -> Path:
    """Write a file that describes a schedule of the pipeline that only syncs."""
    name = schedule["name"] if isinstance(schedule, dict) and "name" in schedule else "unnamed"
    content = {"pipeline": "sync-only", "data": {"uri": "s3://b/data"}, "schedule": schedule, **groups}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(content))
    return path


def apply(api: KfpApi, *files: Path, dry_run: bool = False) -> list[str]:
    said: list[str] = []
    apply_schedules(api, files, said.append, dry_run=dry_run)
    return [
        line
        for line in said
        if not line.startswith(("unchanged: sync", "uploaded", "cron times", "warning: no registry"))
    ]


def changes(server: KfpServer) -> list[str]:
    return [each for each in server.requests if not each.startswith("GET")]


def names(server: KfpServer) -> list[str]:
    return sorted(each["display_name"] for each in server.schedules)


def test_schedules_are_created_as_the_files_describe_them(server: KfpServer, api: KfpApi, tmp_path: Path) -> None:
    asked = {"max_concurrency": 2, "experiment": "research", "service_account": "team"}
    said = apply(api, described(tmp_path, {**NIGHTLY, **asked}), described(tmp_path, WEEKLY))
    nightly, weekly = server.schedules
    (research, _) = server.kinds["experiments"].values()
    assert nightly["trigger"] == {"cron_schedule": {"cron": "0 0 2 * * *"}}
    assert nightly["runtime_config"]["parameters"]["data_uri"] == "s3://b/data"
    assert (nightly["max_concurrency"], nightly["service_account"]) == ("2", "team")
    assert (research["display_name"], nightly["experiment_id"]) == ("research", research["experiment_id"])
    assert weekly["trigger"] == {"periodic_schedule": {"interval_second": str(7 * 86400)}}
    assert said == [
        "schedule 'nightly' is enabled: cron '0 0 2 * * *'",
        "schedule 'weekly' is enabled: every 604800 s",
    ]


TRAINING = {"pipeline": "train-pytorch", "model": {"uri": "s3://b/model"}, "storage": {"output": "s3://b/output"}}


@pytest.mark.parametrize("groups", [{}, TRAINING])
def test_what_is_as_described_is_left_alone(
    server: KfpServer, api: KfpApi, tmp_path: Path, groups: dict[str, Any]
) -> None:
    """Also with storage.output, for which another version is uploaded than that of the compiled file."""
    file = described(tmp_path, NIGHTLY, **groups)
    apply(api, file)
    server.requests.clear()
    assert apply(api, file) == ["unchanged: schedule 'nightly'"]
    assert changes(server) == []


@pytest.mark.parametrize(
    "change",
    [
        {"schedule": {**NIGHTLY, "cron": "0 0 3 * * *"}},
        {"schedule": {**NIGHTLY, "max_concurrency": 2}},
        {"schedule": {**NIGHTLY, "experiment": "research"}},
        {"schedule": {**NIGHTLY, "service_account": "team"}},
        {"data": {"uri": "s3://b/other"}},
    ],
)
def test_what_differs_is_replaced(change: dict[str, Any], server: KfpServer, api: KfpApi, tmp_path: Path) -> None:
    apply(api, described(tmp_path, NIGHTLY))
    (before,) = server.schedules
    said = apply(api, described(tmp_path, **{"schedule": NIGHTLY, **change}))
    (after,) = server.schedules
    assert (before["recurring_run_id"] != after["recurring_run_id"], after["mode"]) == (True, "ENABLE")
    assert said[1].startswith(f"replaced {before['recurring_run_id']} (")
    assert server.most_enabled == 1


@pytest.mark.parametrize("is_paused", [False, True], ids=["left over", "paused"])
def test_what_an_interrupted_apply_left_is_repaired(
    is_paused: bool, server: KfpServer, api: KfpApi, tmp_path: Path
) -> None:
    file = described(tmp_path, NIGHTLY)
    apply(api, file)
    (made,) = server.schedules
    if is_paused:
        made["mode"] = "DISABLE"
    else:
        server.add("recurringruns", {**made, "mode": "DISABLE"})
    assert apply(api, file)[0] == "schedule 'nightly' is enabled: cron '0 0 2 * * *'"
    assert [each["mode"] for each in server.schedules] == ["ENABLE"]


def test_only_what_an_earlier_apply_made_is_deleted(server: KfpServer, api: KfpApi, tmp_path: Path) -> None:
    nightly, weekly = described(tmp_path, NIGHTLY), described(tmp_path, WEEKLY)
    by_hand = RunOptions(source="sync-only", pairs=("data.uri=s3://b/data",), name="by-hand")
    create_schedule(api, by_hand, Timing(every="6h"), lambda _: None)
    server.add("recurringruns", {"display_name": "of-the-ui", "mode": "ENABLE", "description": "applied by someone"})
    apply(api, nightly, weekly)
    assert apply(api, nightly) == [
        "unchanged: schedule 'nightly'",
        "deleted schedule 'weekly', which no file describes; runs that it started continue",
    ]
    assert names(server) == ["by-hand", "nightly", "of-the-ui"]
    assert all("propagation_policy=ORPHAN" in each for each in server.requests if "DELETE" in each)


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(server: KfpServer, api: KfpApi, tmp_path: Path) -> None:
    apply(api, described(tmp_path, NIGHTLY), described(tmp_path, WEEKLY))
    server.requests.clear()
    changed = described(tmp_path, {**NIGHTLY, "cron": "0 0 3 * * *"})
    assert apply(api, changed, described(tmp_path, {**WEEKLY, "name": "often"}), dry_run=True) == [
        "would replace schedule 'nightly'",
        "would create schedule 'often'",
        "would delete schedule 'weekly', which no file describes; runs that it started continue",
    ]
    assert changes(server) == []


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (None, r"unnamed\.yaml describes no schedule: add `schedule:` with cron or every"),
        ("nightly", "describes no schedule"),
        ({"name": "x"}, r"x\.yaml: give exactly one of cron"),
        ({"name": "x", "every": "6h", "cron": "0 0 2 * * *"}, "give exactly one of cron"),
        ({"name": "x", "every": "soon"}, "'soon' is not an interval"),
        ({"name": "x", "crom": "0 0 2 * * *"}, "a key of schedule is 'crom': use one of cron, every"),
        ({"name": "x", "every": "6h", "max_concurrency": "2"}, "max_concurrency must be a number from 1 to 10"),
        ({"name": "x", "every": "6h", "experiment": 5}, r"x\.yaml: schedule\.experiment must be text, not 5"),
    ],
)
def test_an_invalid_file_is_refused_before_anything_is_changed(
    schedule: object, message: str, server: KfpServer, api: KfpApi, tmp_path: Path
) -> None:
    with pytest.raises(InvalidSetting, match=message):
        apply(api, described(tmp_path, NIGHTLY), described(tmp_path, schedule))
    assert server.requests == []


def test_two_files_of_one_name_are_refused(server: KfpServer, api: KfpApi, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    with pytest.raises(InvalidSetting, match=r"2 files describe 1 schedules: give each file a schedule\.name"):
        apply(api, described(tmp_path, NIGHTLY), described(tmp_path / "other", NIGHTLY))


def test_nothing_is_deleted_if_a_schedule_cannot_be_replaced(server: KfpServer, api: KfpApi, tmp_path: Path) -> None:
    nightly, weekly = described(tmp_path, NIGHTLY), described(tmp_path, WEEKLY)
    apply(api, weekly)
    server.fail(":enable", answer(403, "quota exceeded"))
    with pytest.raises(KfpError, match="quota exceeded"):
        apply(api, nightly)
    assert names(server) == ["weekly"]


def test_a_schedule_of_others_is_not_replaced(server: KfpServer, api: KfpApi, tmp_path: Path) -> None:
    server.add("recurringruns", {"display_name": "nightly", "mode": "ENABLE"})
    with pytest.raises(NotOurSchedule, match="another schedule is named 'nightly'"):
        apply(api, described(tmp_path, NIGHTLY))


def test_other_commands_ignore_the_schedule_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(json.dumps({"data": {"uri": "s3://b/d"}, "model": {"uri": "s3://b/m"}, "schedule": NIGHTLY}))
    assert planned_run(read_source(str(file)), "r").dataset_uri == "s3://b/d"


def scheduled(server: KfpServer, api: KfpApi) -> dict[str, Any]:
    run = RunOptions(source="sync-only", pairs=("data.uri=s3://b/data",), name="nightly", service_account="team")
    create_schedule(api, run, Timing(every="6h"), lambda _: None)
    (made,) = server.schedules
    return made


@pytest.mark.parametrize("by_id", [False, True], ids=["name", "id"])
def test_a_run_of_a_schedule_is_what_the_schedule_would_start(
    by_id: bool, server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    made = scheduled(server, api)
    wanted = made["recurring_run_id"] if by_id else "nightly"
    start_and_show(api, lambda: run_schedule(api, wanted, print), detach=True, as_json=False)
    (run,) = server.kinds["runs"].values()
    for field in ("pipeline_version_reference", "runtime_config", "experiment_id", "service_account"):
        assert run[field] == made[field]
    assert run["display_name"].startswith("nightly 2")
    assert capsys.readouterr().out.startswith(f"run {run['run_id']} of schedule 'nightly'\nfollow it with `kubetrain")


def test_a_run_of_a_schedule_is_followed(server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]) -> None:
    scheduled(server, api)
    server.next_story = [workflow([Step(task="sync-dataset")], "SUCCEEDED")]
    start_and_show(api, lambda: run_schedule(api, "nightly", print), detach=False, as_json=False)
    assert capsys.readouterr().out.endswith(" succeeded\n")


def test_of_several_schedules_the_enabled_one_is_run(server: KfpServer, api: KfpApi) -> None:
    made = scheduled(server, api)
    server.add("recurringruns", {**made, "mode": "DISABLE", "service_account": "another"})
    run_schedule(api, "nightly", print)
    assert [run["service_account"] for run in server.kinds["runs"].values()] == ["team"]


def test_a_schedule_that_does_not_exist_is_not_run(server: KfpServer, api: KfpApi) -> None:
    with pytest.raises(NotFound, match="schedule 'nosuch' does not exist: there are none"):
        run_schedule(api, "nosuch", print)


def test_an_interrupt_waits_until_it_is_known_which_run_has_started(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    scheduled(server, api)
    server.fail("POST /apis/v2beta1/runs", interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_schedule(api, "nightly", print)
    (run_id,) = server.kinds["runs"]
    assert f"run {run_id} of schedule 'nightly'" in capsys.readouterr().out
