"""Schedules of others with the same name, on servers of several versions, and what resuming one starts."""

from collections.abc import Iterator
from typing import Any

import pytest

from kubetrain_pipelines.cli.schedules import ScheduleOptions, schedule_and_show
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.find_schedules import NotOurSchedule
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.replace_schedule import replace_schedule
from support.kfp_runs import kfp_without_cluster
from support.kfp_schedules import NIGHTLY, RUN, enabled, manage, wanted
from support.kfp_server import KfpServer


def theirs(server: KfpServer, **fields: Any) -> dict[str, Any]:
    """Let others create an enabled schedule named nightly, for another pipeline."""
    made = {
        **wanted("0 0 5 * * *"),
        "pipeline_version_reference": {"pipeline_id": "theirs"},
        "mode": "ENABLE",
        **fields,
    }
    return server.add("recurringruns", made)


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with kfp_without_cluster() as server:
        yield server


@pytest.fixture
def api(server: KfpServer) -> KfpApi:
    return KfpApi(Connection(endpoint=server.endpoint, environment={}))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"description": "scheduled by kubetrain, 00"},
        {"description": "", "pipeline_version_reference": {}},
        {"mode": "DISABLE"},
    ],
    ids=["pipeline of others", "other pipeline", "made in the UI", "paused"],
)
def test_a_schedule_of_others_with_the_same_name_is_left_alone(
    server: KfpServer, api: KfpApi, fields: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    other = theirs(server, **fields)
    with pytest.raises(NotOurSchedule, match=f"{other['recurring_run_id']} .*another name, or use force"):
        schedule_and_show(api, RUN, ScheduleOptions(cron=NIGHTLY))
    assert server.schedules == [other]
    schedule_and_show(api, RUN, ScheduleOptions(cron=NIGHTLY, force=True))
    assert enabled(server) == [NIGHTLY]
    assert f"replaced {other['recurring_run_id']} (pipeline" in capsys.readouterr().out


def test_a_name_in_other_letters_is_another_schedule(server: KfpServer, api: KfpApi) -> None:
    other = theirs(server, display_name="Nightly")
    schedule_and_show(api, RUN, ScheduleOptions(cron=NIGHTLY))
    assert other in server.schedules
    manage(api, pause="nightly")
    assert enabled(server) == ["0 0 5 * * *"]


@pytest.mark.parametrize("verb", ["pause", "resume", "delete"])
def test_a_name_of_schedules_for_two_pipelines_is_not_guessed(server: KfpServer, api: KfpApi, verb: str) -> None:
    for pipeline in ("one", "other"):
        reference = {"pipeline_id": pipeline}
        theirs(server, description="scheduled by kubetrain, 00", pipeline_version_reference=reference)
    with pytest.raises(NotOurSchedule, match="'nightly' may mean "):
        manage(api, **{verb: "nightly"})
    assert len(enabled(server)) == 2


@pytest.mark.parametrize("verb", ["pause", "resume", "delete"])
def test_a_name_that_others_use_too_is_not_guessed(server: KfpServer, api: KfpApi, verb: str) -> None:
    schedule_and_show(api, RUN, ScheduleOptions(cron=NIGHTLY))
    (ours,) = server.schedules
    other = theirs(server)
    with pytest.raises(NotOurSchedule, match=f"'nightly' may mean .*{other['recurring_run_id']}.*not by kubetrain"):
        manage(api, **{verb: "nightly"})
    assert len(enabled(server)) == 2
    manage(api, **{verb: ours["recurring_run_id"]})
    assert "0 0 5 * * *" in enabled(server)
    assert (NIGHTLY in enabled(server)) == (verb == "resume")


def test_all_of_a_name_are_paused_and_deleted_by_force(server: KfpServer, api: KfpApi) -> None:
    theirs(server)
    theirs(server)
    manage(api, pause="nightly", force=True)
    assert enabled(server) == []
    manage(api, delete="nightly", force=True)
    assert server.schedules == []


def test_older_servers_would_end_the_runs_of_a_schedule_with_it(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    server.tag = "2.15.0"
    schedule_and_show(api, RUN, ScheduleOptions(cron="0 0 1 * * *"))
    schedule_and_show(api, RUN, ScheduleOptions(cron=NIGHTLY))
    assert enabled(server) == [NIGHTLY]
    assert len(server.schedules) == 2
    assert "stays, disabled: Kubeflow Pipelines 2.15.0 would end its runs" in capsys.readouterr().out
    with pytest.raises(KfpError, match=r"2\.15\.0 would end the runs of 'nightly' with it: pause it instead"):
        manage(api, delete="nightly")
    assert not [each for each in server.requests if each.startswith("DELETE")]
    manage(api, delete="nightly", force=True)
    assert server.schedules == []


@pytest.mark.parametrize(
    ("catchup", "missed"), [(False, "the last one usually starts now"), (True, "they usually start now, one by one")]
)
def test_resuming_promises_no_run_that_may_not_start(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str], catchup: bool, missed: str
) -> None:
    schedule_and_show(api, RUN, ScheduleOptions(cron=NIGHTLY, catchup=catchup))
    manage(api, pause="nightly")
    manage(api, resume="nightly")
    assert f"'nightly' is enabled; if it missed runs, {missed}" in capsys.readouterr().out
    manage(api, resume="nightly")
    assert "enabled already" in capsys.readouterr().out


def test_schedules_are_found_in_the_namespace(server: KfpServer, api: KfpApi) -> None:
    server.namespace = "team-a"
    ours = KfpApi(Connection(endpoint=server.endpoint, namespace="team-a", environment={}))
    for cron in ("0 0 1 * * *", "0 0 2 * * *"):
        replace_schedule(ours, wanted(cron))
    manage(ours, pause="nightly")
    assert enabled(server) == []
    for options in ({"list": True}, {"pause": "nightly"}):
        with pytest.raises(KfpError, match="--namespace"):
            manage(api, **options)
