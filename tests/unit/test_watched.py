"""A watched list stays current even if the server forgets versions, hangs or goes down."""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes import watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden, KubernetesError, Unreachable
from kubetrain_components.jobs.kubernetes.watched import Watched
from support.api_server import PODS, ApiServer, Fault, Handler, answer, cut, end_at_once, hang

Until = Callable[[Callable[[], bool]], None]


@pytest.fixture
def pods(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(kubernetes_api, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    pods = Watched(KubernetesApi.connect(retry_seconds=60), PODS)
    yield pods
    pods.stop()


def begin(pods: Watched) -> None:
    pods.start()
    wait_for(pods, lambda: pods.has_synced)


def wait_for(pods: Watched, condition: Callable[[], bool]) -> None:
    assert pods.changed.wait_for(condition, 60), pods.objects()


def names(pods: Watched) -> dict[str, bool]:
    """Return whether each object is gone, by name."""
    return {seen.manifest["metadata"]["name"]: seen.is_gone for seen in pods.objects()}


def requests(server: ApiServer, kind: str) -> list[str]:
    return [request for request in server.requests if ("watch=" in request) == (kind == "watch")]


def test_changes_are_seen_as_they_happen(server: ApiServer, pods: Watched) -> None:
    server.put(f"{PODS}/a")
    begin(pods)
    assert names(pods) == {"a": False}
    server.put(f"{PODS}/b")
    wait_for(pods, lambda: "b" in names(pods))
    server.put(f"{PODS}/b", status={"phase": "Running"})
    wait_for(pods, lambda: pods.objects()[1].manifest.get("status") == {"phase": "Running"})
    assert pods.objects()[0].manifest["kind"] == "Pod"
    assert "allowWatchBookmarks=true" in server.requests[-1]
    assert len(requests(server, "list")) == 1


def test_a_long_list_is_read_in_pages(server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "PAGE_SIZE", 2)
    for name in "abcde":
        server.put(f"{PODS}/{name}")
    begin(pods)
    assert list(names(pods)) == list("abcde")
    assert len(requests(server, "list")) == 3


def test_a_deleted_object_is_kept_in_its_last_state(server: ApiServer, pods: Watched) -> None:
    server.put(f"{PODS}/a", status={"phase": "Failed"})
    begin(pods)
    server.remove(f"{PODS}/a")
    wait_for(pods, lambda: names(pods) == {"a": True})
    assert pods.objects()[0].manifest["status"] == {"phase": "Failed"}
    server.put(f"{PODS}/a")
    wait_for(pods, lambda: len(pods.objects()) == 2)
    assert [seen.is_gone for seen in pods.objects()] == [True, False]


def test_a_cut_watch_continues_from_its_last_version(server: ApiServer, pods: Watched) -> None:
    begin(pods)
    for number in range(20):
        server.fail("watch=", cut(after_bytes=40 + 97 * number))
    for number in range(20):
        server.cut_all()
        server.put(f"{PODS}/{number}")
        time.sleep(0.02)
    wait_for(pods, lambda: len(names(pods)) == 20)
    assert len(requests(server, "list")) == 1


def test_changes_are_not_missed_while_the_server_is_down(server: ApiServer, pods: Watched) -> None:
    server.put(f"{PODS}/a")
    begin(pods)
    server.refuse()
    server.remove(f"{PODS}/a")
    server.put(f"{PODS}/b")
    threading.Timer(0.3, server.listen).start()
    wait_for(pods, lambda: names(pods) == {"a": True, "b": False})


@pytest.mark.parametrize("tells_late", [True, False])
def test_a_forgotten_version_leads_to_a_new_list(server: ApiServer, pods: Watched, tells_late: bool) -> None:
    server.put(f"{PODS}/a")
    server.put(f"{PODS}/b")
    begin(pods)
    server.tells_410_late = tells_late
    server.refuse()
    server.remove(f"{PODS}/a")
    server.put(f"{PODS}/b", status={"phase": "Running"})
    server.forget()
    server.listen()
    wait_for(pods, lambda: names(pods) == {"a": True, "b": False})
    assert pods.objects()[1].manifest["status"] == {"phase": "Running"}
    server.put(f"{PODS}/c")
    wait_for(pods, lambda: "c" in names(pods))


@pytest.mark.parametrize("status", [429, 500, 503])
@pytest.mark.parametrize("request_part", ["watch=", f"GET {PODS}"])
def test_a_request_to_a_failing_server_is_retried(
    server: ApiServer, pods: Watched, status: int, request_part: str
) -> None:
    server.fail(request_part, answer(status, "not now"), times=2)
    begin(pods)
    server.put(f"{PODS}/a")
    wait_for(pods, lambda: "a" in names(pods))


def test_a_watch_that_hangs_is_replaced(server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched, "WATCH_SECONDS", 0.2)
    monkeypatch.setattr(watched, "GRACE_SECONDS", 0.1)
    server.fail("watch=", hang(30))
    begin(pods)
    server.put(f"{PODS}/a")
    wait_for(pods, lambda: "a" in names(pods))


def test_a_server_that_ends_each_watch_at_once_is_not_flooded(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.1)
    server.fail("watch=", end_at_once, times=1000)
    began = time.monotonic()
    begin(pods)
    while len(requests(server, "watch")) < 6:
        time.sleep(0.01)
    assert time.monotonic() - began >= 5 * 0.1


def test_the_next_list_finds_what_the_watch_missed(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "WATCH_SECONDS", 0.2)
    begin(pods)
    server.objects[f"{PODS}/silent"] = {"metadata": {"name": "silent", "uid": "1", "resourceVersion": "1"}}
    wait_for(pods, lambda: "silent" in names(pods))


def test_a_new_list_without_changes_keeps_the_objects(server: ApiServer, pods: Watched) -> None:
    server.put(f"{PODS}/a")
    begin(pods)
    server.put(f"{PODS}/b")
    wait_for(pods, lambda: "b" in names(pods))
    before = pods.objects()
    server.forget()
    wait_for(pods, lambda: len(requests(server, "list")) >= 2 or None is not pods.error)
    assert all(one is other for one, other in zip(before, pods.objects(), strict=True))


def test_a_list_ends_a_gap_even_if_no_watch_begins(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "CUT_OFF_SECONDS", 60.0)
    server.fail("watch=", answer(410, "too old"))
    pods._read_round(pods._list())
    pods._cut_off_since -= 100
    assert pods.is_cut_off
    pods._list()
    assert not pods.is_cut_off
    pods._cut_off_since -= 100  # the watch after this list does not begin either
    assert pods.is_cut_off


def test_a_missing_permission_ends_it(server: ApiServer, pods: Watched) -> None:
    message = 'pods is forbidden: User "me" cannot list resource "pods" in API group "" in the namespace "tests"'
    server.fail("GET", answer(403, message))
    pods.start()
    wait_for(pods, lambda: pods.error is not None)
    assert isinstance(pods.error, Forbidden)
    assert not pods.has_synced


def test_a_missing_namespace_ends_it(server: ApiServer, pods: Watched) -> None:
    server.fail("GET", answer(404, "not found"))
    pods.start()
    wait_for(pods, lambda: pods.error is not None)
    assert isinstance(pods.error, KubernetesError)


def test_a_server_that_does_not_come_back_ends_it(server: ApiServer, pods: Watched) -> None:
    pods._api.retry_seconds = 0.3
    begin(pods)
    server.refuse()
    wait_for(pods, lambda: pods.error is not None)
    assert isinstance(pods.error, Unreachable)


def changed_by(line: bytes) -> Fault:
    def fault(handler: Handler) -> bool:
        handler.begin_stream()
        handler.send_chunk(line + b"\n")
        handler.end_stream()
        return True

    return fault


@pytest.mark.parametrize("line", [b"<html>please log in</html>", b"[]", b"null", b"{}", b'{"type": "ADDED"}', b"\xff"])
def test_a_line_that_makes_no_sense_leads_to_a_new_list(server: ApiServer, pods: Watched, line: bytes) -> None:
    server.fail("watch=", changed_by(line), times=2)
    begin(pods)
    server.put(f"{PODS}/a")
    wait_for(pods, lambda: "a" in names(pods))
    assert pods.error is None


@pytest.mark.parametrize("error", [OSError(24, "Too many open files"), RuntimeError("exec plugin not found")])
def test_trouble_on_this_machine_is_survived(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    begin(pods)
    exchange, errors = KubernetesApi._exchange, iter([error] * 3)

    def fail_first(*arguments: Any) -> Any:
        if (raised := next(errors, None)) is not None:
            raise raised
        return exchange(*arguments)

    monkeypatch.setattr(KubernetesApi, "_exchange", fail_first)
    server.cut_all()
    server.put(f"{PODS}/a")
    wait_for(pods, lambda: "a" in names(pods))


def test_the_first_trouble_after_a_long_time_is_survived(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As behind a load balancer that cuts each watch before its minute: the list is hours old."""
    begin(pods)
    monkeypatch.setattr(watched, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + 86400))
    server.fail("watch=", changed_by(b"{}"))
    server.cut_all()
    server.put(f"{PODS}/a")
    wait_for(pods, lambda: "a" in names(pods))
    assert pods.error is None


def test_trouble_that_stays_ends_it(server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*unused: Any) -> None:
        raise OSError(24, "Too many open files")

    pods._api.retry_seconds = 0.3
    monkeypatch.setattr(KubernetesApi, "_exchange", fail)
    pods.start()
    wait_for(pods, lambda: pods.error is not None)
    assert isinstance(pods.error, KubernetesError) and "Too many open files" in str(pods.error)


def test_even_the_end_of_the_interpreter_is_heard(
    server: ApiServer, pods: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def leave(*unused: Any) -> None:
        raise SystemExit

    monkeypatch.setattr(KubernetesApi, "_exchange", leave)
    pods.start()
    wait_for(pods, lambda: isinstance(pods.error, SystemExit))


def test_a_thread_that_waits_for_its_next_try_ends_when_it_is_stopped(server: ApiServer, pods: Watched) -> None:
    server.fail("GET", answer(503, "not now", Retry_After="60"))
    pods._api.retry_seconds = 300
    pods.start()
    while not server.requests:
        time.sleep(0.01)
    pods.stop()
    pods.join(60)
    assert not pods.is_alive() and pods.error is None


def test_deleted_objects_can_be_forgotten(server: ApiServer, pods: Watched) -> None:
    forgetful = Watched(pods._api, PODS, pods.changed, keeps_deleted=False)
    forgetful.start()
    for number in range(3):
        server.put(f"{PODS}/{number}")
    wait_for(pods, lambda: len(forgetful.objects()) == 3)
    server.remove(f"{PODS}/0")
    wait_for(pods, lambda: len(forgetful.objects()) == 2)
    server.refuse()
    server.remove(f"{PODS}/1")
    server.forget()
    server.listen()
    wait_for(pods, lambda: list(names(forgetful)) == ["2"])
    forgetful.stop()


def test_several_may_share_one_condition(server: ApiServer, pods: Watched) -> None:
    jobs = Watched(pods._api, PODS.replace("pods", "jobs"), pods.changed, labelSelector="a=b")
    jobs.start()
    begin(pods)
    wait_for(pods, lambda: jobs.has_synced)
    server.put(PODS.replace("pods", "jobs") + "/a", metadata={"labels": {"a": "b"}})
    wait_for(pods, lambda: len(jobs.objects()) == 1)
    assert all("labelSelector=a%3Db" in request for request in server.requests if "/jobs" in request)
    jobs.stop()
    jobs.join(60)
    assert not jobs.is_alive()
