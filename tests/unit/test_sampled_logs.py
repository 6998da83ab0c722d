"""The logs of a large job: the lead's and alarming ones live, the others read in turn by few connections."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes import pod_logs, sampled_logs, watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.pod_logs import PodLogs
from kubetrain_components.jobs.kubernetes.watched import Watched
from support.api_server import PODS, ApiServer, answer, lines_of, stamp

LEAD = "worker-0"
NEVER = 3600.0


class Reader:
    """Reads in a thread, like a launcher that follows only the lead."""

    def __init__(self, pods: Watched, since: str = "") -> None:
        self.lines: list[LogLine] = []
        self.is_over = False
        self.logs = PodLogs(pods._api, pods, "main", lambda pod: str(pod["metadata"]["name"]), since, LEAD)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        for line in self.logs.lines(lambda: self.is_over):
            self.lines.append(line)

    def of(self, pod: str) -> list[str]:
        return [line.text for line in self.lines if line.pod == pod]

    @property
    def shown(self) -> list[LogLine]:
        return [line for line in self.lines if not line.is_sampled]

    def finish(self) -> list[LogLine]:
        self.is_over = True
        self.thread.join(60)
        assert not self.thread.is_alive()
        return self.lines


@pytest.fixture
def pods(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(pod_logs, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(pod_logs, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(sampled_logs, "MIN_INTERVAL_SECONDS", 0.1)
    monkeypatch.setattr(sampled_logs, "READS_PER_SECOND", 1000.0)
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


def wait_until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def followed(server: ApiServer) -> set[str]:
    requests = [request for request in list(server.requests) if "follow=true" in request]
    return {request.removeprefix(f"GET {PODS}/").partition("/")[0] for request in requests}


def test_all_pods_are_read_over_few_connections_and_only_the_lead_is_shown(server: ApiServer, pods: Watched) -> None:
    names = run_pods(server, 100)
    reader = Reader(pods)
    wait_until(lambda: all(len(reader.of(name)) == 3 for name in names))
    assert {line.pod for line in reader.shown} == {LEAD}
    assert followed(server) == {LEAD}
    assert len(reader.logs._samples._readers) == sampled_logs.MAX_READERS
    assert server.connections <= sampled_logs.MAX_READERS + 4
    for name in names:
        server.write(server.runs[name][-1], *lines_of(range(3, 6)))
    wait_until(lambda: all(len(reader.of(name)) == 6 for name in names))
    assert all(reader.of(name) == [f"line {number}" for number in range(6)] for name in names)
    for name in names:
        server.end(name)
    assert len(reader.finish()) == 600


def test_a_pod_that_writes_something_alarming_is_shown_and_followed(server: ApiServer, pods: Watched) -> None:
    run_pods(server, 40)
    reader = Reader(pods)
    server.write(server.runs["worker-7"][-1], f"{stamp(1)} Traceback (most recent call last):\n".encode())
    wait_until(lambda: "worker-7" in followed(server))
    server.write(server.runs["worker-7"][-1], f"{stamp(2)}   File x.py\n".encode())
    wait_until(lambda: len(reader.of("worker-7")) == 5)
    shown = [line.text for line in reader.shown if line.pod == "worker-7"]
    assert shown == ["Traceback (most recent call last):", "  File x.py"]
    assert followed(server) == {LEAD, "worker-7"}


def test_only_so_many_alarming_pods_are_followed_but_all_are_shown(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "MAX_ALARMING_PODS", 3)
    names = run_pods(server, 40)
    texts = {name: f"error: too bad {chr(ord('A') + index)}" for index, name in enumerate(names[1:])}
    for name, text in texts.items():
        server.write(server.runs[name][-1], f"{stamp(1)} {text}\n".encode())
    reader = Reader(pods)
    wait_until(lambda: all(text in reader.of(name) for name, text in texts.items()))
    assert {line.text for line in reader.shown if line.pod != LEAD} == {*texts.values()}
    wait_until(lambda: len(followed(server)) == 4)
    assert len([each for each in reader.logs._logs.values() if each.is_alive()]) == 4


def test_an_alarming_line_of_all_pods_is_shown_a_few_times_and_counted(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_logs, "COUNT_SECONDS", NEVER)
    names = run_pods(server, 40)
    for index, name in enumerate(names[1:]):
        server.write(server.runs[name][-1], f"{stamp(1)} error: lost rank {index}\n".encode())
        server.end(name)
    server.end(LEAD)
    reader = Reader(pods)
    wait_until(lambda: [pod.manifest["status"]["phase"] for pod in pods.objects()] == ["Succeeded"] * len(names))
    reader.finish()
    *shown, counted = [line.text for line in reader.shown if line.pod != LEAD]
    assert len(shown) == pod_logs.MAX_SAME
    assert "and 35 more such lines" in counted


def test_the_last_lines_of_a_pod_that_failed_are_read_at_once(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_logs, "MIN_INTERVAL_SECONDS", NEVER)
    run_pods(server, 40)
    reader = Reader(pods)
    wait_until(lambda: len(reader.of(LEAD)) == 3)
    server.write(server.runs["worker-9"][-1], *lines_of(range(100, 105)))
    server.end("worker-9", "Failed")
    wait_until(lambda: reader.of("worker-9")[-1:] == ["line 104"])
    assert [line.pod for line in reader.lines if line.pod not in (LEAD, "worker-9")] == []


def test_a_request_for_the_last_lines_of_a_failed_pod_is_repeated(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_logs, "MIN_INTERVAL_SECONDS", NEVER)
    monkeypatch.setattr(sampled_logs, "RETRY_SECONDS", 0.05)
    run_pods(server, 40)
    reader = Reader(pods)
    wait_until(lambda: len(reader.of(LEAD)) == 3)
    server.write(server.runs["worker-9"][-1], *lines_of(range(100, 105)))
    server.fail("worker-9/log?", answer(500), times=3)
    server.end("worker-9", "Failed")
    wait_until(lambda: reader.of("worker-9")[-1:] == ["line 104"])


def test_the_previous_run_of_a_container_that_restarted_is_read_at_once(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_logs, "MIN_INTERVAL_SECONDS", NEVER)
    run_pods(server, 40)
    reader = Reader(pods)
    wait_until(lambda: len(reader.of(LEAD)) == 3)
    server.end("worker-9", "Running")
    server.write(server.run("worker-9", restarts=1), *lines_of(range(100, 102)))
    wait_until(lambda: reader.of("worker-9")[-1:] == ["line 101"])
    assert reader.of("worker-9") == ["line 0", "line 1", "line 2", "line 100", "line 101"]


def test_the_end_of_the_job_waits_until_all_ended_pods_are_read(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_logs, "MIN_INTERVAL_SECONDS", NEVER)
    names = run_pods(server, 60)
    reader = Reader(pods)
    wait_until(lambda: len(reader.of(LEAD)) == 3)
    for name in names:
        server.end(name)
    wait_until(lambda: [pod.manifest["status"]["phase"] for pod in pods.objects()] == ["Succeeded"] * len(names))
    reader.finish()
    assert all(len(reader.of(name)) == 3 for name in names)


def test_many_logs_that_cannot_be_read_are_one_warning(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampled_logs, "REPORT_SECONDS", NEVER)
    server.fail("/log?", answer(500, "no such node"), times=10_000)
    run_pods(server, 40)
    reader = Reader(pods)
    samples = reader.logs._samples
    wait_until(lambda: sum(each.error is not None for each in list(samples._logs.values())) == 39)
    monkeypatch.setattr(sampled_logs, "REPORT_SECONDS", 0.1)
    samples._report_at = 0.0
    wait_until(lambda: reader.shown)
    time.sleep(0.5)  # for a second warning, which must not come
    (warning,) = [line.text for line in reader.shown]
    assert "39 pods" in warning and "no such node" in warning


def test_another_launcher_looks_again_at_what_the_first_may_have_missed(server: ApiServer, pods: Watched) -> None:
    run_pods(server, 40)
    server.write(server.runs["worker-5"][-1], f"{stamp(3)} error: not seen\n".encode())
    server.write(server.runs[LEAD][-1], *lines_of(range(900, 1000)))
    reader = Reader(pods, since=stamp(9.49))
    wait_until(lambda: "error: not seen" in reader.of("worker-5") and len(reader.of(LEAD)) == 50)


def test_the_threads_end_when_the_watch_is_stopped(server: ApiServer, pods: Watched) -> None:
    run_pods(server, 40)
    reader = Reader(pods)
    wait_until(lambda: len(reader.logs._samples._readers) == sampled_logs.MAX_READERS)
    pods.stop()
    reader.thread.join(60)
    for thread in reader.logs._samples._readers:
        thread.join(60)
        assert not thread.is_alive()
