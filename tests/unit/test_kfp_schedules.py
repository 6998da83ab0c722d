"""Schedules: at most one of a name is enabled, even if a replacement is interrupted, and the next one repairs it."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from kubetrain_pipelines.cli.runs import list_schedules_and_show
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, NotFound
from kubetrain_pipelines.kubeflow.replace_schedule import ConcurrentReplacement, replace_schedule
from kubetrain_trainer.errors import InvalidSetting
from support.api_server import Fault, answer, cut, interrupt
from support.kfp_runs import kfp_without_cluster
from support.kfp_schedules import NIGHTLY, RUN, create, delete, enabled, wanted
from support.kfp_server import KfpServer

CHANGES = 5
"""The changing requests of a replacement: create, disable, enable, delete, and one more than it sends."""


class Killed(BaseException):
    """Stands for SIGKILL: no cleanup runs."""


class DyingApi(KfpApi):
    """An API whose process is killed after `changes_left` changing requests."""

    changes_left = 0

    def _change(self, method: str, path: str, *arguments: Any, **content: Any) -> str:
        if self.changes_left == 0:
            raise Killed
        self.changes_left -= 1
        return super()._change(method, path, *arguments, **content)


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with kfp_without_cluster() as server:
        yield server


@pytest.fixture
def api(server: KfpServer) -> DyingApi:
    api = DyingApi(Connection(endpoint=server.endpoint, environment={}))
    api.changes_left = 1000
    return api


def test_a_schedule_is_created_without_overlap_or_catchup(
    server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]
) -> None:
    create(api)
    (made,) = server.schedules
    assert (made["mode"], made["max_concurrency"], made["no_catchup"]) == ("ENABLE", "1", True)
    assert made["pipeline_version_reference"]["pipeline_version_id"] in server.kinds["versions"]
    assert made["runtime_config"] == {"parameters": {"data_uri": "s3://b/data"}}
    output = capsys.readouterr().out
    assert "schedule 'nightly' is enabled: cron '0 0 2 * * *'\n" in output
    assert "cron times are assumed to be in UTC" in output


def test_a_schedule_replaces_the_one_with_its_name_but_not_its_runs(server: KfpServer, api: KfpApi) -> None:
    create(api)
    create(api, cron="", every="6h", max_concurrency=2)
    (made,) = server.schedules
    assert made["trigger"] == {"periodic_schedule": {"interval_second": "21600"}}
    assert (made["mode"], made["max_concurrency"], made["no_catchup"]) == ("ENABLE", "2", True)
    assert server.most_enabled == 1
    assert [each.partition("?")[2] for each in server.requests if "DELETE" in each] == ["propagation_policy=ORPHAN"]


@pytest.mark.parametrize("changes", range(CHANGES))
def test_killed_at_any_point_at_most_one_runs_and_the_next_call_repairs(
    server: KfpServer, api: DyingApi, changes: int
) -> None:
    replace_schedule(api, wanted("0 0 1 * * *"))
    api.changes_left = changes
    try:
        replace_schedule(api, wanted("0 0 2 * * *"))
        assert changes == CHANGES - 1
    except Killed:
        assert len(enabled(server)) <= 1
    api.changes_left = 1000
    assert replace_schedule(api, wanted("0 0 3 * * *")).leftovers == []
    assert enabled(server) == ["0 0 3 * * *"]
    assert len(server.schedules) == 1
    assert server.most_enabled == 1


@pytest.mark.parametrize("fault", [answer(500, "no database"), answer(409), answer(403)], ids=["500", "409", "403"])
@pytest.mark.parametrize("request_", ["POST /apis/v2beta1/recurringruns", ":disable", ":enable"])
def test_a_replacement_that_fails_is_undone(server: KfpServer, api: KfpApi, request_: str, fault: Fault) -> None:
    replace_schedule(api, wanted("0 0 1 * * *"))
    (before,) = server.schedules
    server.fail(request_, fault)
    with pytest.raises(KfpError):
        replace_schedule(api, wanted("0 0 2 * * *"))
    assert server.schedules == [before]
    assert enabled(server) == ["0 0 1 * * *"]
    assert server.most_enabled == 1


@pytest.mark.parametrize("request_", ["POST /apis/v2beta1/recurringruns", ":disable", ":enable"])
@pytest.mark.parametrize("lost", [cut(0), answer(502)], ids=["done", "not done"])
def test_an_answer_that_is_lost_is_looked_for(server: KfpServer, api: KfpApi, request_: str, lost: Fault) -> None:
    replace_schedule(api, wanted("0 0 1 * * *"))
    server.fail(request_, lost)
    try:
        replace_schedule(api, wanted("0 0 2 * * *"))
        assert enabled(server) == ["0 0 2 * * *"]
    except KfpError as error:
        assert request_.startswith("POST /"), error  # a schedule is not created a second time by guess
        assert enabled(server) == ["0 0 1 * * *"]
    assert len(server.schedules) == server.most_enabled == 1


@pytest.mark.parametrize("request_", ["POST /apis/v2beta1/recurringruns", ":disable", ":enable"])
def test_a_replacement_is_finished_even_if_interrupted(server: KfpServer, api: KfpApi, request_: str) -> None:
    replace_schedule(api, wanted("0 0 1 * * *"))
    server.fail(request_, interrupt)
    with pytest.raises(KeyboardInterrupt):
        replace_schedule(api, wanted("0 0 2 * * *"))
    assert enabled(server) == ["0 0 2 * * *"]
    assert len(server.schedules) == server.most_enabled == 1


@pytest.mark.parametrize(
    "replaced",
    [
        lambda api, cron: replace_schedule(api, wanted(cron)),
        create,
    ],
    ids=["replace", "create"],
)
def test_an_interrupt_before_the_first_change_stops_at_once(
    server: KfpServer, api: KfpApi, replaced: Callable[[KfpApi, str], object]
) -> None:
    replaced(api, "0 0 1 * * *")
    before = server.requests.count("POST /apis/v2beta1/recurringruns")
    server.fail("GET /apis/v2beta1/recurringruns", interrupt)
    with pytest.raises(KeyboardInterrupt):
        replaced(api, "0 0 2 * * *")
    assert server.requests.count("POST /apis/v2beta1/recurringruns") == before
    assert enabled(server) == ["0 0 1 * * *"]


def test_the_old_one_is_not_enabled_before_the_new_one_is_disabled(server: KfpServer, api: KfpApi) -> None:
    """The new one is enabled, but the answer is lost."""
    replace_schedule(api, wanted("0 0 1 * * *"))
    server.fail(":enable", cut(0))
    server.fail("GET /apis/v2beta1/recurringruns/", answer(403))
    with pytest.raises(KfpError, match="the replacement was undone"):
        replace_schedule(api, wanted("0 0 2 * * *"))
    assert enabled(server) == ["0 0 1 * * *"]
    assert server.most_enabled == 1


def test_of_several_enabled_schedules_those_that_stay_disabled_are_named(server: KfpServer, api: KfpApi) -> None:
    for minute in (1, 2):
        made = {**wanted(f"0 {minute} 1 * * *"), "mode": "ENABLE", "description": f"scheduled by kubetrain, {minute}"}
        server.add("recurringruns", made)
    first, second = (each["recurring_run_id"] for each in server.schedules)
    server.fail(":enable", answer(403, "quota exceeded"))
    with pytest.raises(KfpError, match=r"the replacement was undone, but .* stays disabled") as caught:
        replace_schedule(api, wanted("0 0 2 * * *"))
    (left,) = (each["recurring_run_id"] for each in server.schedules if each["mode"] == "DISABLE")
    assert left in str(caught.value)
    assert {first, second} - {left} != set()
    assert not ({first, second} - {left}) & set(str(caught.value).split()), "the other one is enabled again"
    assert len(server.schedules) == 2


def test_a_server_that_goes_down_leaves_at_most_one(server: KfpServer, api: KfpApi) -> None:
    replace_schedule(api, wanted("0 0 1 * * *"))
    server.fail(":enable", answer(503), times=99)
    with pytest.raises(KfpError, match=r"undoing the replacement failed too .*`kubetrain schedule list`"):
        replace_schedule(api, wanted("0 0 2 * * *"))
    assert enabled(server) == []
    server._faults.clear()
    replace_schedule(api, wanted("0 0 2 * * *"))
    assert enabled(server) == ["0 0 2 * * *"]
    assert len(server.schedules) == 1


def test_an_old_schedule_that_cannot_be_deleted_is_reported_and_stays_disabled(server: KfpServer, api: KfpApi) -> None:
    replace_schedule(api, wanted("0 0 1 * * *"))
    server.fail("DELETE", answer(500, "no database"))
    (leftover,) = replace_schedule(api, wanted("0 0 2 * * *")).leftovers
    assert "is disabled, but could not be deleted" in leftover
    assert enabled(server) == ["0 0 2 * * *"]


def test_a_server_that_would_ignore_the_account_is_refused_and_keeps_the_old_schedule(
    server: KfpServer, api: KfpApi
) -> None:
    run = replace(RUN, service_account="team")
    create(api, "0 0 1 * * *", run)
    assert server.schedules[0]["service_account"] == "team"
    server.tag, server.ignores_accounts = "2.16.1", True
    with pytest.raises(KfpError, match=r"2\.16\.1 ignores --service-account team .* would have 'pipeline-runner'"):
        create(api, run=run)
    assert len(server.schedules) == 1
    assert enabled(server) == ["0 0 1 * * *"]
    create(api, run=replace(RUN, service_account="pipeline-runner"))
    assert enabled(server) == [NIGHTLY]


def test_two_concurrent_replacements_do_not_both_succeed(server: KfpServer, api: KfpApi) -> None:
    """Another schedule of this name appears after ours has listed them."""

    def intrude(handler: Any) -> bool:
        server.add("recurringruns", {**wanted("0 0 9 * * *"), "mode": "DISABLE"})
        return False

    server.fail("POST /apis/v2beta1/recurringruns", intrude)
    with pytest.raises(ConcurrentReplacement, match="someone else is replacing schedule 'nightly'"):
        replace_schedule(api, wanted("0 0 2 * * *"))
    assert len(server.schedules) == 1
    assert enabled(server) == []


def test_schedules_are_listed_and_deleted(server: KfpServer, api: KfpApi, capsys: pytest.CaptureFixture[str]) -> None:
    def listed() -> str:
        list_schedules_and_show(api)
        return capsys.readouterr().out

    assert "no schedules: create one with `kubetrain schedule create" in listed()
    replace_schedule(api, wanted(NIGHTLY))
    assert "nightly  cron '0 0 2 * * *'  enabled\n" in listed()
    server.schedules[0]["mode"] = "DISABLE"
    assert "nightly  cron '0 0 2 * * *'  paused\n" in listed()
    with pytest.raises(NotFound, match="schedule 'nightli' does not exist: did you mean 'nightly'"):
        delete(api, "nightli")
    delete(api, "nightly")
    assert server.schedules == []


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"cron": ""}, "exactly one of cron"),
        ({"cron": NIGHTLY, "every": "6h"}, "exactly one of cron"),
        ({"cron": "0 2 * * *"}, "use '0 0 2 * * *'"),
        ({"cron": "0 0 0 30 2 *"}, "never fires"),
        ({"cron": "", "every": "6 hours"}, "'6 hours' is not an interval"),
        ({"cron": "", "every": "0m"}, "'0m' is not an interval"),
        ({"cron": "", "every": "999999999d"}, "'999999999d' is not an interval of up to ten years"),
        ({"cron": "", "every": "٣h"}, "'٣h' is not an interval"),
        *(({"cron": NIGHTLY, "max_concurrency": each}, f"to 10, not {each!r}") for each in (0, 11, 2.5, "x", True)),
    ],
)
def test_unusable_options_are_refused_before_any_request(
    server: KfpServer, api: KfpApi, options: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidSetting) as refused:
        create(api, **options)
    assert expected in str(refused.value)
    assert server.requests == []
