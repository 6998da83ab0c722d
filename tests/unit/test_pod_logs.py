"""Every line of every pod, once, through restarts of containers, pods and servers."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes import container_log, pod_log, pod_logs, watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.log_position import LogPosition, nanoseconds, rfc3339
from kubetrain_components.jobs.kubernetes.pod_logs import MAX_QUEUED_BATCHES, PodLogs
from kubetrain_components.jobs.kubernetes.watched import Watched
from support.api_server import PODS, ApiServer, Handler, Run, answer, cut, end_at_once, lines_of, stamp


@pytest.fixture
def pods(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(pod_log, "PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(pod_logs, "POLL_SECONDS", 0.02)
    monkeypatch.setattr(kubernetes_api, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(kubernetes_api, "MAX_PAUSE_SECONDS", 0.1)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    pods = Watched(KubernetesApi.connect(retry_seconds=60), PODS)
    pods.start()
    yield pods
    pods.stop()


class Reader:
    """Reads in a thread, like a launcher."""

    def __init__(self, server: ApiServer, pods: Watched, since: str = "") -> None:
        self.server, self.pods = server, pods
        self.lines: list[LogLine] = []
        self.is_over = False
        self.error: Exception | None = None
        self.logs = PodLogs(pods._api, pods, "main", lambda pod: str(pod["metadata"]["name"]), since)
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        try:
            for line in self.logs.lines(lambda: self.is_over and self._has_seen_all()):
                self.lines.append(line)
        except Exception as error:  # noqa: BLE001 - the test looks at it
            self.error = error

    def _has_seen_all(self) -> bool:
        """Return True if the newest version of each pod was seen, from which a launcher knows that the job is over."""
        seen = {pod.uid: pod.manifest["metadata"]["resourceVersion"] for pod in self.pods.objects()}
        newest = [pod["metadata"] for pod in self.server.objects.values()]
        return all(seen.get(pod["uid"]) == pod["resourceVersion"] for pod in newest)

    def wait_for(self, count: int) -> None:
        end = time.monotonic() + 60
        while len(self.lines) < count:
            assert time.monotonic() < end, f"{len(self.lines)} of {count} lines"
            time.sleep(0.005)

    def wait_for_position(self, position: str) -> None:
        """Wait: a batch counts once the reader asks for the next line."""
        end = time.monotonic() + 60
        while self.logs.position != position:
            assert time.monotonic() < end, self.logs.position
            time.sleep(0.005)

    def finish(self) -> list[LogLine]:
        self.is_over = True
        self.thread.join(60)
        assert not self.thread.is_alive()
        if self.error is not None:
            raise self.error
        return self.lines


def numbers(lines: list[LogLine], pod: str = "a") -> list[int]:
    return [int(line.text.removeprefix("line ")) for line in lines if line.pod == pod]


def test_lines_arrive_while_they_are_written(server: ApiServer, pods: Watched) -> None:
    run = server.run("a")
    reader = Reader(server, pods)
    server.write(run, *lines_of(range(3)))
    reader.wait_for(3)
    server.write(run, *lines_of(range(3, 5)))
    server.end("a")
    assert numbers(reader.finish()) == list(range(5))


def test_each_pod_has_its_own_lines_even_if_it_starts_later(server: ApiServer, pods: Watched) -> None:
    server.put(f"{PODS}/b", status={"phase": "Pending"})
    server.write(server.run("a"), *lines_of(range(10)))
    reader = Reader(server, pods)
    reader.wait_for(10)
    server.write(server.run("b"), *lines_of(range(20)))
    reader.wait_for(30)
    server.end("a")
    server.end("b")
    lines = reader.finish()
    assert (numbers(lines, "a"), numbers(lines, "b")) == (list(range(10)), list(range(20)))


def test_blank_unfinished_binary_and_endless_lines_are_kept(server: ApiServer, pods: Watched) -> None:
    run = server.run("a")
    endless = b"x" * 200_000
    texts = [b"\n", b"\xff\xfe\n", b"with \r in it\r\n", endless + b"\n", b"  no end"]
    server.write(run, *(stamp(number).encode() + b" " + text for number, text in enumerate(texts)))
    server.end("a")
    lines = [line.text for line in Reader(server, pods).finish()]
    assert lines[:3] == ["", "\ufffd\ufffd", "with \r in it"]
    assert "".join(lines[3:-1]) == endless.decode()
    assert lines[-1] == "  no end"


@pytest.mark.parametrize(
    "answer",
    [
        b"unable to retrieve container logs for containerd://2fcc0d04",
        b'failed to try resolving symlinks in path "/var/log/pods/n_j_u/main/0.log": no such file or directory\n',
    ],
)
def test_a_kubelets_message_about_a_removed_log_is_not_a_line_of_it(
    server: ApiServer, pods: Watched, answer: bytes
) -> None:
    run = server.run("a")
    server.write(run, stamp(0).encode() + b" unable to retrieve container logs for fun\n", answer)
    server.end("a")
    assert [line.text for line in Reader(server, pods).finish()] == ["unable to retrieve container logs for fun"]


def outage_after_three_lines(server: ApiServer, pods: Watched) -> tuple[Run, Reader]:
    run = server.run("a")
    server.write(run, *lines_of(range(3)))
    reader = Reader(server, pods)
    reader.wait_for(3)
    server.refuse()
    server.cut_all()
    return run, reader


def test_lines_that_were_rotated_away_while_the_server_was_down_are_announced(server: ApiServer, pods: Watched) -> None:
    run, reader = outage_after_three_lines(server, pods)
    run.lines[:] = lines_of(range(500, 503))
    server.listen()
    reader.wait_for(7)
    server.cut_all()  # now the last line is there
    server.write(run, *lines_of(range(503, 505)))
    server.end("a")
    texts = [line.text for line in reader.finish()]
    assert texts == [*(f"line {n}" for n in range(3)), container_log.GAP, *(f"line {n}" for n in range(500, 505))]


def test_unordered_lines_that_arrive_again_are_not_a_gap(server: ApiServer, pods: Watched) -> None:
    """The last line, from stdout, is older than the one from stderr before it."""
    run = server.run("a")
    lines = [f"{stamp(seconds)} line {number}\n".encode() for number, seconds in enumerate((5.9, 5.1, 6.0))]
    server.write(run, *lines[:2])
    reader = Reader(server, pods)
    reader.wait_for(2)
    server.cut_all()
    server.write(run, lines[2])
    server.end("a")
    assert [line.text for line in reader.finish()] == ["line 0", "line 1", "line 2"]


def test_a_new_run_of_a_container_that_nobody_could_read_is_not_a_gap(server: ApiServer, pods: Watched) -> None:
    run, reader = outage_after_three_lines(server, pods)
    server.write(run, *lines_of(range(3, 5)))
    server.end("a", "Running")
    server.write(server.run("a", restarts=1), *lines_of(range(500, 503)))
    server.listen()
    server.end("a")
    assert numbers(reader.finish()) == [0, 1, 2, 3, 4, 500, 501, 502]


def test_no_line_is_lost_or_repeated_when_streams_break(server: ApiServer, pods: Watched) -> None:
    """They may break anywhere, even within a line or between lines of the same time."""
    run = server.run("a")
    for number in range(20):
        server.fail("/log?", cut(after_bytes=1 + 1033 * number))
    reader = Reader(server, pods)
    for start in range(0, 1000, 50):
        server.write(run, *lines_of(range(start, start + 50), per_second=1000))
        time.sleep(0.01)
    server.end("a")
    assert numbers(reader.finish()) == list(range(1000))


def test_lines_with_equal_or_unordered_timestamps_are_told_apart(server: ApiServer, pods: Watched) -> None:
    """A program that writes to stdout and stderr produces such lines."""
    run = server.run("a")
    lines = [f"{stamp(5 - number % 3 * 0.001)} line {number % 7}\n".encode() for number in range(300)]
    for number in range(10):
        server.fail("/log?", cut(after_bytes=40 * 30 * number + 17))
    reader = Reader(server, pods)
    server.write(run, *lines)
    server.end("a")
    assert numbers(reader.finish()) == [number % 7 for number in range(300)]


def test_the_end_of_a_stream_is_not_the_end_of_the_log(server: ApiServer, pods: Watched) -> None:
    run = server.run("a")
    server.fail("/log?", end_at_once, times=3)
    reader = Reader(server, pods)
    server.write(run, *lines_of(range(10)))
    reader.wait_for(10)
    server.end("a")
    assert numbers(reader.finish()) == list(range(10))


def test_after_an_outage_reading_continues_at_the_last_position(server: ApiServer, pods: Watched) -> None:
    run = server.run("a")
    reader = Reader(server, pods)
    server.write(run, *lines_of(range(100)))
    reader.wait_for(100)
    server.refuse()
    server.write(run, *lines_of(range(100, 200)))
    threading.Timer(0.3, server.listen).start()
    reader.wait_for(200)
    server.end("a")
    assert numbers(reader.finish()) == list(range(200))


@pytest.mark.parametrize("is_down", [False, True])
def test_each_run_of_a_container_is_read_to_its_end(server: ApiServer, pods: Watched, is_down: bool) -> None:
    reader = Reader(server, pods)
    for restarts in range(3):
        run = server.run("a", restarts=restarts)
        server.write(run, *lines_of(range(100 * restarts, 100 * restarts + 50)))
        reader.wait_for(100 * restarts + 50)
        if is_down:
            server.refuse()
        server.write(run, *lines_of(range(100 * restarts + 50, 100 * restarts + 100)))
        server.end("a", "Running")
        if restarts < 2:
            server.run("a", restarts=restarts + 1)
        if is_down:
            server.listen()
        reader.wait_for(100 * restarts + 100)
    server.end("a")
    assert numbers(reader.finish()) == list(range(300))


@pytest.mark.parametrize("asked", ["follow=true", "timestamps=true&sinceTime"])
def test_a_run_that_ends_while_its_log_is_requested_is_read_before_the_next_one(
    server: ApiServer, pods: Watched, asked: str
) -> None:
    """The request then gets the log of the new run, for which it did not ask."""
    reader, run = Reader(server, pods), server.run("a")
    server.write(run, *lines_of(range(100)))
    reader.wait_for(100)

    def restart(handler: Handler) -> bool:
        server.write(run, *lines_of(range(100, 500)))
        server.end("a", "Running")
        server.write(server.run("a", restarts=1), *lines_of(range(1000, 1050)))
        return False

    server.fail(asked, restart)
    if asked == "follow=true":
        server.cut_all()
    else:
        server.end("a", "Running")
    reader.wait_for(550)
    server.end("a")
    assert numbers(reader.finish()) == [*range(500), *range(1000, 1050)]


def test_reading_a_restarted_container_begins_with_its_previous_run(server: ApiServer, pods: Watched) -> None:
    server.write(server.run("a"), *lines_of(range(100)))
    server.end("a", "Running")
    server.write(server.run("a", restarts=1), *lines_of(range(100, 200)))
    reader = Reader(server, pods)
    reader.wait_for(200)
    server.end("a")
    assert numbers(reader.finish()) == list(range(200))


@pytest.mark.parametrize("status", [400, 401, 403, 500, 502])
def test_a_request_to_a_kubelet_that_has_just_started_is_retried(server: ApiServer, pods: Watched, status: int) -> None:
    """It rejects every request until it has loaded its credentials."""
    run = server.run("a")
    message = "Forbidden (user=kube-apiserver, verb=get, resource=nodes, subresource=proxy)"
    reader = Reader(server, pods)
    server.write(run, *lines_of(range(100)))
    reader.wait_for(100)
    server.fail("/log?", answer(status, message), times=3 if status != 400 else 0)
    server.cut_all()
    server.write(run, *lines_of(range(100, 200)))
    server.end("a")
    assert numbers(reader.finish()) == list(range(200))


def test_a_new_pod_of_the_same_name_is_read_from_its_beginning(server: ApiServer, pods: Watched) -> None:
    server.write(server.run("a"), *lines_of(range(100)))
    reader = Reader(server, pods)
    reader.wait_for(100)
    with server.changed:
        server.runs["a"][-1].is_over = True
        server.remove(f"{PODS}/a")
        del server.runs["a"]
    server.write(server.run("a"), *lines_of(range(100)))
    reader.wait_for(200)
    server.end("a", "Running")
    server.write(server.run("a", restarts=1), *lines_of(range(100, 200)))
    reader.wait_for(300)
    server.end("a")
    assert numbers(reader.finish()) == [*range(100), *range(200)]


def test_pods_that_still_run_when_the_job_is_over_do_not_delay_the_end(server: ApiServer, pods: Watched) -> None:
    server.write(server.run("a"), *lines_of(range(10)))
    server.write(server.run("b"), *lines_of(range(10)))
    server.put(f"{PODS}/c", status={"phase": "Pending"})
    reader = Reader(server, pods)
    reader.wait_for(20)
    server.end("a")
    assert len(reader.finish()) == 20


def test_reading_continues_from_the_position_of_another_launcher(server: ApiServer, pods: Watched) -> None:
    a, b = server.run("a"), server.run("b")
    first = Reader(server, pods)
    server.write(a, *lines_of(range(250)))
    server.write(b, *lines_of(range(250)))
    first.wait_for(500)
    position = stamp(2.49)
    first.wait_for_position(position)
    server.write(a, *lines_of(range(250, 300)))
    server.write(b, *lines_of(range(250, 300)))
    second = Reader(server, pods, since=position)
    second.wait_for(100)
    server.end("a")
    server.end("b")
    lines = second.finish()
    assert numbers(lines, "a") == numbers(lines, "b") == list(range(250, 300))
    first.finish()


def test_the_position_waits_for_the_slowest_pod_but_not_for_a_quiet_one(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.run("silent")
    run = server.run("a")
    reader = Reader(server, pods)
    assert reader.logs.position == ""
    server.write(run, *lines_of(range(2000)))
    reader.wait_for(2000)
    reader.wait_for_position(stamp(0))
    monkeypatch.setattr(pod_log, "QUIET_SECONDS", 0.0)
    reader.wait_for_position(stamp(19.99 - 5))
    server.end("a")
    server.end("silent")
    reader.finish()
    reader.wait_for_position(stamp(19.99))  # the thread may take a moment to end


def test_a_slow_reader_blocks_the_streams(server: ApiServer, pods: Watched) -> None:
    run = server.run("a")
    line = stamp(0).encode() + b" " + b"x" * 1000 + b"\n"
    server.write(run, *([line] * 20_000))
    server.end("a")
    reader = Reader(server, pods)
    logs = PodLogs(pods._api, pods, "main", lambda pod: "a")
    lines = logs.lines(reader._has_seen_all)
    next(lines)
    time.sleep(0.3)
    waiting = sum(len(text) for batch in list(logs._queue.queue) for text in batch.texts)
    assert waiting <= MAX_QUEUED_BATCHES * container_log.MAX_LINE_BYTES
    assert sum(1 for _ in lines) == 19_999
    assert len(reader.finish()) == 20_000


def test_a_missing_permission_is_a_warning_once(server: ApiServer, pods: Watched) -> None:
    denied = 'User "me" cannot get resource "pods/log" in API group "" in the namespace "x"'
    server.fail("/log?", answer(403, denied), times=10)
    for pod in "abc":
        server.run(pod)
    reader = Reader(server, pods)
    for pod in "abc":
        server.end(pod)
    (warning,) = [line.text for line in reader.finish()]
    assert "warning" in warning and "pods/log" in warning


def test_a_log_that_this_machine_could_not_read_is_read_later(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pod_log, "RETRY_SECONDS", 0.05)
    stream, failures = KubernetesApi.stream, iter([OSError(24, "Too many open files")] * 3)

    def fail_first(*arguments: Any, **options: Any) -> Any:
        if "/log" in arguments[1] and (error := next(failures, None)) is not None:
            raise error
        return stream(*arguments, **options)

    monkeypatch.setattr(KubernetesApi, "stream", fail_first)
    server.write(server.run("a"), *lines_of(range(3)))
    reader = Reader(server, pods)
    reader.wait_for(4)
    server.end("a")
    lines = reader.finish()
    assert "Too many open files" in lines[0].text
    assert numbers(lines[1:]) == [0, 1, 2]


def test_the_threads_end_when_the_watch_is_stopped(server: ApiServer, pods: Watched) -> None:
    server.run("a")
    reader = Reader(server, pods)
    while not any("/log?" in request for request in server.requests):
        time.sleep(0.01)
    pods.stop()
    reader.thread.join(60)
    assert not reader.thread.is_alive()
    logs = list(reader.logs._logs.values())
    for log in logs:
        log.join(60)
    assert [log.is_alive() for log in logs] == [False]


def test_times_keep_their_precision() -> None:
    for text in ["2026-11-21T23:51:15.123456789Z", "2026-11-21T23:51:15.000000001Z"]:
        assert rfc3339(nanoseconds(text) or 0) == text
    assert nanoseconds("2026-11-21T23:51:15.5+02:00") == nanoseconds("2026-11-21T21:51:15.500Z")
    assert nanoseconds("2026-11-21T23:51:15Z") == nanoseconds("2026-11-21T23:51:15.000000000Z")
    assert nanoseconds("unable to retrieve container logs") is None


def test_the_memory_of_read_lines_does_not_grow() -> None:
    position = LogPosition()
    for start in range(0, 30_000, 100):
        position.new_lines(lines_of(range(start, start + 100), per_second=100))
    assert sum(len(lines) for _, lines in position._recent) < 1000


def test_lines_that_may_be_out_of_order_are_requested_again() -> None:
    position = LogPosition()
    assert position.since_time is None
    position.new_lines([stamp(5).encode() + b" from one output, before a line of 4.9 from the other"])
    assert position.since_time == stamp(4)
