"""A fake of the REST API of Kubeflow Pipelines (v2beta1) as the command line uses it, which can be made to fail.

It answers as the API server does, or as the UI server in front of it. Its answers have the same form as those recorded
from 2.17.0 (tests/unit/recorded), which tests/unit/test_kfp_server.py checks.
"""

import json
import re
import uuid
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from support.api_server import ApiServer, Handler

ROOT = "/apis/v2beta1"
ITEM = re.compile(rf"{ROOT}/(?P<kind>\w+)/(?P<id>[^/:]+)(:(?P<verb>\w+))?$")
VERSIONS = re.compile(rf"{ROOT}/pipelines/(?P<pipeline>[^/]+)/versions(/(?P<id>[^/]+))?$")
HEALTH = f"{ROOT}/healthz"
LOG = re.compile(r"/apis/v1alpha1/runs/[^/]+/nodes/(?P<pod>[^/]+)/log$")
CONTENT = re.compile(rb'name="uploadfile".*?\r\n\r\n(.*)\r\n--', re.S)
ID = {"experiments": "experiment_id", "pipelines": "pipeline_id", "runs": "run_id", "recurringruns": "recurring_run_id"}
UNIQUE = {"experiments": "display_name", "pipelines": "name"}
BEGINNING = datetime(2026, 11, 22, tzinfo=UTC)
RECORDED = Path(__file__).parents[1] / "unit" / "recorded"
UI_ROOT = "/pipeline"
UI_PASSES_ON = ("/apis/v1beta1/", "/apis/v2beta1/")
UI_LOG = "/k8s/pod/logs"


def recorded_run(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / "kfp" / f"{name}.json").read_text())
    return content


def recorded_answer(name: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((RECORDED / "kfp_answers" / f"{name}.json").read_text())
    return content


class KfpServer(ApiServer):
    def __init__(self, *, ui: bool = False) -> None:
        """
        Args:
            ui: Answer like the UI server, which a gateway leads to.
        """
        super().__init__(KfpHandler)
        self.ui = ui
        self.tag = "2.17.0"
        """The version, which the health route reports."""
        self.is_api_up = True
        """Whether the UI server reaches the API server."""
        self.kinds: dict[str, dict[str, dict[str, Any]]] = {kind: {} for kind in (*ID, "versions")}
        self.uploads: list[bytes] = []
        self.stories: dict[str, list[dict[str, Any]]] = {}
        """The answers to successive reads of each run, by ID; the last one remains."""
        self.next_story: list[dict[str, Any]] = []
        """The story of the next run that is started."""
        self.logs: dict[str, str] = {}
        """The logs by pod."""
        self.token = ""
        """The token that requests must have."""
        self.namespace = ""
        """The namespace that requests must name, as on a multi-user server."""
        self.ignores_accounts = False
        """Whether the runs of all schedules have the default account, as before 2.17."""
        self.most_enabled = 0
        """The most schedules that were ever enabled at once."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}{UI_ROOT if self.ui else ''}"

    @property
    def schedules(self) -> list[dict[str, Any]]:
        return list(self.kinds["recurringruns"].values())

    def add(self, kind: str, message: dict[str, Any]) -> dict[str, Any]:
        """Create an object; each has a later creation time than the one before."""
        number = sum(map(len, self.kinds.values()))
        stamp = f"{BEGINNING + timedelta(seconds=number):%Y-%m-%dT%H:%M:%SZ}"
        made = {name: value for name, value in message.items() if value != ""}
        made |= {ID.get(kind, "pipeline_version_id"): str(uuid.uuid4()), "created_at": stamp}
        if kind == "recurringruns":
            made["status"] = f"{made['mode']}D"
            account = None if self.ignores_accounts else made.get("service_account")
            made["service_account"] = account or "pipeline-runner"
        self.kinds[kind][made[ID.get(kind, "pipeline_version_id")]] = made
        self.count_enabled()
        return made

    def count_enabled(self) -> None:
        self.most_enabled = max(self.most_enabled, sum(each["mode"] == "ENABLE" for each in self.schedules))


class KfpHandler(Handler):
    @property
    def kfp(self) -> KfpServer:
        assert isinstance(self.api, KfpServer)
        return self.api

    def do_GET(self) -> None:  # noqa: N802
        if not self._is_accepted():
            return None
        if self.parts.path == HEALTH:
            return self._send_health()
        if log := LOG.match(self.parts.path):
            text = self.kfp.logs.get(log["pod"])
            return self._send_recorded("api_log_gone") if text is None else self.send_bytes(200, text.encode())
        if versions := VERSIONS.match(self.parts.path):
            return self._get_versions(versions)
        if (item := ITEM.match(self.parts.path)) is None:
            return self._get_all(self.parts.path.rpartition("/")[2])
        story = self.kfp.stories.get(item["id"])
        found = self.kfp.kinds[item["kind"]].get(item["id"])
        if story:
            made = self.kfp.kinds["runs"][item["id"]]
            same = {name: made[name] for name in ("run_id", "display_name", "pipeline_version_reference")}
            found = {**(story.pop(0) if len(story) > 1 else story[0]), **same}
        return self._unknown(item["id"]) if found is None else self.send_json(200, found)

    def do_POST(self) -> None:  # noqa: N802
        if not self._is_accepted():
            return None
        path, body = self.parts.path, self.body
        if path.endswith("/pipelines/upload_version"):
            versions = self.kfp.kinds["versions"].values()
            if any(each["name"] == self.query["name"] for each in versions):
                return self.send_json(409, {"error_message": "Failed to create a pipeline version"})
            made = {"name": self.query["name"], "pipeline_id": self.query["pipelineid"]}
            return self.send_json(200, self.kfp.add("versions", made))
        if item := ITEM.match(path):
            return self._do(item)
        kind = path.rpartition("/")[2]
        unique = UNIQUE.get(kind)
        if unique and any(each[unique] == body[unique] for each in self.kfp.kinds[kind].values()):
            return self._refuse(409, 6, f"The name {body[unique]} already exist. Please specify a new name")
        made = self.kfp.add(kind, {"state": "PENDING", **body} if kind == "runs" else body)
        if kind == "runs":
            self.kfp.stories[made["run_id"]] = self.kfp.next_story
        return self.send_json(200, made)

    def do_DELETE(self) -> None:  # noqa: N802
        if not self._is_accepted():
            return None
        item = ITEM.match(self.parts.path)
        assert item
        if self.kfp.kinds[item["kind"]].pop(item["id"], None) is None:
            return self._unknown(item["id"])
        return self.send_json(200, {})

    def _do(self, item: re.Match[str]) -> None:
        found = self.kfp.kinds[item["kind"]].get(item["id"])
        if found is None:
            return self._unknown(item["id"])
        match item["verb"]:
            case "terminate" if found["state"] not in ("PENDING", "RUNNING"):
                return self._refuse(400, 3, f"Failed to terminate a run {item['id']}. Row not found")
            case "terminate":
                found["state"] = "CANCELING"
            case "enable" | "disable" as verb:
                found["mode"] = verb.upper()
                self.kfp.count_enabled()
        return self.send_json(200, {})

    def _get_all(self, kind: str) -> None:
        if kind not in ID:
            return self._send_recorded("api_unknown_route")
        return self._list("recurringRuns" if kind == "recurringruns" else kind, list(self.kfp.kinds[kind].values()))

    def _get_versions(self, versions: re.Match[str]) -> None:
        mine = [each for each in self.kfp.kinds["versions"].values() if each["pipeline_id"] == versions["pipeline"]]
        if versions["id"] is None:
            return self._list("pipeline_versions", mine)
        found = next((each for each in mine if each["pipeline_version_id"] == versions["id"]), None)
        return self.send_json(200, found) if found else self._unknown(versions["id"])

    def _list(self, kind: str, found: list[dict[str, Any]]) -> None:
        if self.kfp.namespace and self.query.get("namespace") != self.kfp.namespace and kind != "pipeline_versions":
            return self._refuse(400, 3, "Resource cannot have an empty namespace and experiment id in multi-user mode")
        predicates = json.loads(self.query.get("filter", '{"predicates": []}'))["predicates"]
        assert all(each["operation"] == "EQUALS" for each in predicates)
        found = [
            each for each in found if all(_equals(each.get(one["key"]), one["string_value"]) for one in predicates)
        ]
        found.sort(key=lambda each: str(each["created_at"]), reverse="desc" in self.query.get("sort_by", ""))
        first, size = int(self.query.get("page_token", "0")), int(self.query.get("page_size", "10"))
        page: dict[str, Any] = {kind: found[first : first + size], "total_size": len(found)} if found else {}
        if first + size < len(found):
            page["next_page_token"] = str(first + size)
        return self.send_json(200, page)

    def _send_health(self) -> None:
        is_multi_user = bool(self.kfp.namespace)
        if not self.kfp.ui:
            answer = json.loads(recorded_answer("api_healthz")["body"])
            return self.send_json(200, {**answer, "tag_name": self.kfp.tag, "multi_user": is_multi_user})
        name = "ui_healthz" if self.kfp.is_api_up else "ui_healthz_without_api_server"
        answer = json.loads(recorded_answer(name)["body"])
        users = dict.fromkeys(("multi_user", "apiServerMultiUser"), is_multi_user)
        return self.send_json(200, {**answer, "apiServerTagName": self.kfp.tag, **users})

    def _is_answered_by_ui(self) -> bool:
        """Answer what the UI server does not pass on."""
        path = self.parts.path.removeprefix(UI_ROOT)
        self.parts = self.parts._replace(path=path)
        if path == UI_LOG:
            text = self.kfp.logs.get(self.query["podname"])
            self._send_recorded("ui_pod_log_gone") if text is None else self.send_bytes(200, text.encode())
            return True
        if not path.startswith(UI_PASSES_ON):
            self._send_recorded("ui_unknown_route")
            return True
        if not self.kfp.is_api_up and path != HEALTH:
            self._send_recorded("ui_without_api_server")
            return True
        return False

    def _send_recorded(self, name: str) -> None:
        answer = recorded_answer(name)
        self.send_bytes(answer["status"], answer["body"].encode(), answer["headers"])

    def _is_accepted(self) -> bool:
        """Return False if the request has been answered already, by a fault or a refusal."""
        self._begin()
        if self._is_answered_by_fault() or (self.kfp.ui and self._is_answered_by_ui()):
            return False
        if not self.parts.path.startswith("/apis/"):
            self.send_bytes(404, b"404 page not found\n")
            return False
        if self.kfp.token and self.headers.get("Authorization") != f"Bearer {self.kfp.token}":
            self._refuse(401, 16, f"Request header error: no such user as {self.headers.get('Authorization')}")
            return False
        return True

    def _begin(self) -> None:
        if "multipart" in self.headers.get("Content-Type", ""):
            content = CONTENT.search(self.rfile.read(int(self.headers["Content-Length"])))
            assert content
            self.kfp.uploads.append(content[1])
            self.headers.replace_header("Content-Length", "0")
        super()._begin()

    def _refuse(self, status: int, code: int, message: str) -> None:
        details = [{"@type": "type.googleapis.com/google.rpc.Status", "code": code, "message": message}]
        self.send_json(status, {"code": code, "message": f"Failed to do it: {message}", "details": details})

    def _unknown(self, wanted: str) -> None:
        self._refuse(404, 5, f"{unquote(wanted)} not found")


def _equals(value: Any, wanted: str) -> bool:
    """Compare as MySQL and MariaDB do, whatever the case."""
    return str(value).lower() == wanted.lower()
