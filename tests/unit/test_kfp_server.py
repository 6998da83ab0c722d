"""The fake Kubeflow Pipelines answers like the real one did: the recorded requests are sent to it once more."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
import urllib3

from support.kfp_server import KfpServer, recorded_answer

POD = "train-x-system-container-impl-1"
IDS = ("experiment_id", "pipeline_id", "pipeline_version_id", "run_id", "recurring_run_id")
API = """
api_healthz api_unknown_route api_unknown_run api_no_recurring_runs api_experiment api_experiment_exists
api_pipeline api_pipeline_exists api_version api_version_exists api_run api_log api_log_gone api_terminate
api_terminate_again api_recurring_run api_enable api_enabled_recurring_run api_delete
api_deleted_recurring_run api_delete_again
""".split()
UI = "ui_healthz ui_unknown_route ui_pod_log ui_pod_log_gone ui_unknown_run".split()
UI_ALONE = "ui_healthz_without_api_server ui_without_api_server".split()


class Replay:
    """Sends recorded requests to the fake, with its own IDs in place of the recorded ones."""

    def __init__(self, server: KfpServer) -> None:
        self._root = server.endpoint.removesuffix("/pipeline")
        self._http = urllib3.PoolManager(retries=False)
        self._ids: dict[str, str] = {}

    def send(self, recorded: dict[str, Any]) -> tuple[int, str]:
        method, path = self._translated(recorded["request"]).split(" ", 1)
        content: dict[str, Any] = {"body": self._translated(json.dumps(recorded.get("sent")))}
        if "upload_version" in path:
            content = {"fields": {"uploadfile": ("recorded.yaml", b"a: b")}}
        answer = self._http.request(method, self._root + path, **content)
        text = answer.data.decode()
        for name in set(IDS) & _parsed(text).keys():
            self._ids[_parsed(recorded["body"])[name]] = _parsed(text)[name]
        return answer.status, text

    def _translated(self, text: str) -> str:
        for recorded, ours in self._ids.items():
            text = text.replace(recorded, ours)
        return text


def _parsed(text: str) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except ValueError:
        return {}


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[KfpServer]:
    with KfpServer(ui=request.param) as server:
        server.logs[POD] = json.loads(json.dumps(recorded_answer("api_log")["body"]))
        yield server


@pytest.mark.parametrize("server", [False], indirect=True)
def test_the_fake_ignores_the_account_of_a_schedule_as_recorded_from_an_older_version(server: KfpServer) -> None:
    server.ignores_accounts = True
    recorded = recorded_answer("api_account_ignored")
    status, text = Replay(server).send(recorded)
    assert (status, recorded["sent"]["service_account"]) == (200, "team")
    assert _parsed(text)["service_account"] == _parsed(recorded["body"])["service_account"] == "pipeline-runner"


@pytest.mark.parametrize(("server", "names"), [(False, API), (True, UI), (True, UI_ALONE)], indirect=["server"])
def test_the_fake_answers_as_recorded(server: KfpServer, names: list[str]) -> None:
    server.is_api_up = names is not UI_ALONE
    replay = Replay(server)
    for name in names:
        recorded = recorded_answer(name)
        status, text = replay.send(recorded)
        assert status == recorded["status"], name
        fields, wanted = _parsed(text), _parsed(recorded["body"])
        assert fields.keys() <= wanted.keys(), name
        assert bool(fields) == bool(wanted), name
        if "healthz" in name:
            assert fields == wanted, name
        if status >= 400:
            assert fields.get("code") == wanted.get("code"), name
        if not wanted:
            assert text == recorded["body"], name
