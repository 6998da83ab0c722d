"""The logs of a large job: the lead's live, and those of some pods that fail."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes import pod_log, pod_logs, watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.pod_logs import PodLogs
from kubetrain_components.jobs.kubernetes.watched import Watched
from support.api_server import PODS, ApiServer, lines_of, stamp

LEAD = "worker-0"


class Reader:
    """Reads in a thread, like a launcher that follows only the lead."""

    def __init__(self, pods: Watched) -> None:
        self.lines: list[LogLine] = []
        self.is_over = False
        self.logs = PodLogs(pods._api, pods, "main", lambda pod: str(pod["metadata"]["name"]), only=LEAD)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for line in self.logs.lines(lambda: self.is_over):
            self.lines.append(line)

    def of(self, pod: str) -> list[str]:
        return [line.text for line in self.lines if line.pod == pod]

    def finish(self) -> None:
        self.is_over = True
        self.thread.join(60)
        assert not self.thread.is_alive()


@pytest.fixture
def pods(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(pod_log, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(pod_logs, "POLL_SECONDS", 0.02)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    pods = Watched(KubernetesApi.connect(retry_seconds=60), PODS)
    pods.start()
    yield pods
    pods.stop()


def run_pods(server: ApiServer, count: int) -> list[str]:
    names = [f"worker-{index}" for index in range(count)]
    for name in names:
        server.write(server.run(name), *lines_of(range(3)))
    return names


def crash(server: ApiServer, pod: str, at: float, *, is_restarted: bool = False) -> None:
    server.runs[pod][-1].is_over = True
    ended = {"terminated": {"exitCode": 1, "finishedAt": stamp(at)}}
    if is_restarted:
        server.run(pod, restarts=1)
    states = {"state": {"running": {}}, "lastState": ended} if is_restarted else {"state": ended}
    status: dict[str, Any] = {"name": "main", "restartCount": int(is_restarted), **states}
    phase = "Running" if is_restarted else "Failed"
    server.put(f"{PODS}/{pod}", status={"phase": phase, "containerStatuses": [status]})


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def asked_for(server: ApiServer) -> set[str]:
    return {request.split("/")[-2] for request in list(server.requests) if "/log?" in request}


def test_only_the_lead_is_followed(server: ApiServer, pods: Watched) -> None:
    names = run_pods(server, 100)
    reader = Reader(pods)
    wait_until(lambda: len(reader.of(LEAD)) == 3)
    for name in names:
        server.end(name)
    wait_until(lambda: all(pod.manifest["status"]["phase"] == "Succeeded" for pod in pods.objects()))
    reader.finish()
    assert asked_for(server) == {LEAD}
    assert {line.pod for line in reader.lines} == {LEAD}


@pytest.mark.parametrize("is_restarted", [False, True])
def test_the_last_minute_of_a_pod_that_fails_is_shown(server: ApiServer, pods: Watched, is_restarted: bool) -> None:
    run_pods(server, 40)
    reader = Reader(pods)
    wait_until(lambda: len(reader.of(LEAD)) == 3)
    server.write(server.runs["worker-9"][-1], f"{stamp(200)} Traceback (most recent call last):\n".encode())
    crash(server, "worker-9", at=201, is_restarted=is_restarted)
    wait_until(lambda: reader.of("worker-9") == ["Traceback (most recent call last):"])
    assert asked_for(server) == {LEAD, "worker-9"}


def test_only_so_many_pods_that_fail_are_followed(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "MAX_FAILED_PODS", 3)
    names = run_pods(server, 40)
    for name in names[1:]:
        crash(server, name, at=3, is_restarted=True)
    reader = Reader(pods)
    wait_until(lambda: len(reader.logs._logs) == 4)
    wait_until(lambda: len(reader.of(LEAD)) == 3)
    assert len(asked_for(server)) <= 4


def test_the_end_waits_for_the_lines_of_a_pod_that_failed(server: ApiServer, pods: Watched) -> None:
    run_pods(server, 40)
    crash(server, "worker-9", at=3)
    server.end(LEAD)
    reader = Reader(pods)
    wait_until(lambda: pods.has_synced)
    reader.finish()
    assert len(reader.of("worker-9")) == len(reader.of(LEAD)) == 3
