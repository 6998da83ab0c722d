"""`kubetrain top`: what jobs request and use, from what a real cluster with metrics-server answered."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.kubernetes.errors import Forbidden
from kubetrain_pipelines.cli.top import top_and_show
from kubetrain_pipelines.status.usage import table_of, usage_by_job
from support.api_server import ApiServer, Handler, answer, not_served

RECORDED = Path(__file__).parent / "recorded" / "usage"
METRICS = "/apis/metrics.k8s.io/v1beta1"
DENIED = 'pods is forbidden: User "me" cannot list resource "pods" in API group "{}" in the namespace "tests"'


def recorded(name: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = json.loads((RECORDED / f"{name}.json").read_text())["items"]
    return items


def pod(name: str, job: str = "train", node: str = "n", phase: str = "Running", **requests: str) -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": job}
    spec = {"containers": [{"name": "main", "resources": {"requests": requests}}]}
    return {
        "metadata": {"name": name, "namespace": "tests", "labels": labels},
        "spec": {**spec, **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }


def metrics(name: str, cpu: str = "1500m", memory: str = "2Gi") -> dict[str, Any]:
    usage = {"cpu": cpu, "memory": memory}
    return {"metadata": {"name": name, "namespace": "tests"}, "containers": [{"name": "main", "usage": usage}]}


def rows(*pods: dict[str, Any], used: list[dict[str, Any]] | None) -> list[list[str]]:
    return [line.split() for line in table_of(usage_by_job(pods, used))[2:]]


def test_a_pod_holds_what_it_requests_once_it_has_a_node_and_until_it_ends() -> None:
    requests = {"cpu": "4", "memory": "8Gi", "nvidia.com/gpu": "2"}
    placed, starting = pod("a", **requests), pod("b", phase="Pending", **requests)
    waiting, ended = pod("c", node="", phase="Pending", **requests), pod("d", phase="Succeeded", **requests)
    assert rows(placed, starting, waiting, ended, used=[metrics("a")]) == [["train", "2/3", "4", "1.5/8", "2/16Gi"]]
    assert rows(waiting, used=[]) == [["train", "0/1", "0", "0/0", "0/0Gi"]]
    assert rows(ended, used=[]) == []


def test_the_use_is_unknown_unless_that_of_each_running_pod_is_known() -> None:
    pods = [pod("a", cpu="1"), pod("b", cpu="1")]
    assert rows(*pods, used=[metrics("a")]) == [["train", "2/2", "0", "-/2", "-/0Gi"]]
    assert rows(*pods, used=None) == [["train", "2/2", "0", "-/2", "-/0Gi"]]
    assert rows(pod("a", phase="Pending", cpu="1"), used=[]) == [["train", "1/1", "0", "-/1", "-/0Gi"]]
    used = [metrics("a"), metrics("b", cpu="250000000n")]
    assert rows(*pods, used=used) == [["train", "2/2", "0", "1.75/2", "4/0Gi"]]


def test_the_largest_job_comes_first() -> None:
    pods = [pod("a", "one", cpu="8"), pod("b", "two", **{"nvidia.com/gpu": "1"}), pod("c", "three", cpu="9")]
    assert [row[0] for row in rows(*pods, used=None)] == ["two", "three", "one"]


class UsageHandler(Handler):
    """Answers with what was recorded, except for the namespace `empty`."""

    def do_GET(self) -> None:  # noqa: N802
        self._begin()
        if self._is_answered_by_fault():
            return None
        if self.parts.path == METRICS:
            return self.send_json(200, json.loads((RECORDED / "served.json").read_text()))
        name = "metrics" if self.parts.path.startswith(METRICS) else "pods"
        items = [] if "empty" in self.parts.path else recorded(name)
        return self.send_json(200, {"kind": "List", "metadata": {}, "items": items})


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer(UsageHandler) as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


def shown(capsys: pytest.CaptureFixture[str], *, all_namespaces: bool = True, as_json: bool = False) -> str:
    top_and_show("", all_namespaces=all_namespaces, as_json=as_json)
    return capsys.readouterr().out


def test_the_recorded_jobs_are_shown_in_80_columns(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    assert shown(capsys) == (RECORDED / "shown.txt").read_text()
    assert max(map(len, shown(capsys).splitlines())) <= 80
    assert {each.partition("?")[0] for each in cluster.requests} == {
        "GET /api/v1/pods",
        f"GET {METRICS}",
        f"GET {METRICS}/pods",
    }
    assert all("labelSelector=kubetrain%2Frun-id" in each for each in cluster.requests if "?" in each)


def test_one_namespace_is_asked_unless_all_are_wanted(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    shown(capsys, all_namespaces=False)
    assert cluster.requests[0].startswith("GET /api/v1/namespaces/tests/pods?")
    assert cluster.requests[-1].startswith(f"GET {METRICS}/namespaces/tests/pods?")


@pytest.mark.parametrize(
    ("request_", "status", "reason"),
    [
        (f"GET {METRICS}", 404, "the cluster does not serve metrics.k8s.io: install metrics-server"),
        (f"GET {METRICS}/pods", 403, "me may not list pods in the namespace tests"),
    ],
)
def test_without_metrics_it_is_said_once_why_the_use_is_unknown(
    request_: str, status: int, reason: str, cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    for as_json in (False, True):
        fault = answer(status, DENIED.format("metrics.k8s.io")) if status == 403 else not_served
        cluster.fail(request_, fault)
        output = shown(capsys, as_json=as_json)
        assert output.count(reason) == 1
        if as_json:
            assert {str(job["used"]) for job in json.loads(output)["jobs"] if job["placed"]} == {"None"}
        else:
            assert "-/0.1" in output


def test_pods_that_may_not_be_listed_are_an_error(cluster: ApiServer) -> None:
    cluster.fail("GET /api/v1/", answer(403, DENIED.format("")))
    with pytest.raises(Forbidden, match="me may not list pods in the namespace tests"):
        top_and_show("", all_namespaces=False, as_json=False)


def test_a_namespace_without_jobs_says_so(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    top_and_show("empty", all_namespaces=False, as_json=False)
    assert capsys.readouterr().out == "no job has pods in namespace empty\n"
