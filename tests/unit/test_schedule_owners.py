"""Schedules of others with the same name."""

from collections.abc import Iterator
from typing import Any

import pytest

from kubetrain_pipelines.cli.runs import list_schedules_and_show
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.find_schedules import NotOurSchedule
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.replace_schedule import replace_schedule
from support.kfp_runs import kfp_without_cluster
from support.kfp_schedules import create, delete, enabled, wanted
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
    server: KfpServer, api: KfpApi, fields: dict[str, Any]
) -> None:
    other = theirs(server, **fields)
    with pytest.raises(NotOurSchedule, match=f"{other['recurring_run_id']} .*another name"):
        create(api)
    assert server.schedules == [other]


def test_a_name_in_other_letters_is_another_schedule(server: KfpServer, api: KfpApi) -> None:
    other = theirs(server, display_name="Nightly")
    create(api)
    assert other in server.schedules
    delete(api, "nightly")
    assert enabled(server) == ["0 0 5 * * *"]


def test_a_name_of_schedules_for_two_pipelines_is_not_guessed(server: KfpServer, api: KfpApi) -> None:
    for pipeline in ("one", "other"):
        reference = {"pipeline_id": pipeline}
        theirs(server, description="scheduled by kubetrain, 00", pipeline_version_reference=reference)
    with pytest.raises(NotOurSchedule, match="'nightly' may mean "):
        delete(api, "nightly")
    assert len(enabled(server)) == 2


def test_a_name_that_others_use_too_is_not_guessed(server: KfpServer, api: KfpApi) -> None:
    create(api)
    (ours,) = server.schedules
    other = theirs(server)
    with pytest.raises(NotOurSchedule, match=f"'nightly' may mean .*{other['recurring_run_id']}.*not by kubetrain"):
        delete(api, "nightly")
    assert len(enabled(server)) == 2
    delete(api, ours["recurring_run_id"])
    assert enabled(server) == ["0 0 5 * * *"]


def test_schedules_are_found_in_the_namespace(server: KfpServer, api: KfpApi) -> None:
    server.namespace = "team-a"
    ours = KfpApi(Connection(endpoint=server.endpoint, namespace="team-a", environment={}))
    for cron in ("0 0 1 * * *", "0 0 2 * * *"):
        replace_schedule(ours, wanted(cron))
    assert enabled(server) == ["0 0 2 * * *"]
    with pytest.raises(KfpError, match="--namespace"):
        list_schedules_and_show(api)
    with pytest.raises(KfpError, match="--namespace"):
        delete(api, "nightly")
