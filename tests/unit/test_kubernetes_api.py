"""Requests to an API server that is sometimes unreachable and sometimes fails."""

import contextlib
import itertools
import logging
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from kubetrain_components.jobs.kubernetes import api as kubernetes_api
from kubetrain_components.jobs.kubernetes import retries
from kubetrain_components.jobs.kubernetes.access.connection import Connection, Material
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import (
    BadRequest,
    Conflict,
    Forbidden,
    Gone,
    KubernetesError,
    StreamCut,
    StreamSilent,
    Unauthorized,
    UnknownKind,
    Unreachable,
)
from support.api_server import PODS, ApiServer, Fault, answer, cut, hang
from support.certificates import Authority
from support.stray_refusals import STRAY

POD = f"{PODS}/worker"
NEW_POD = {"metadata": {"name": "worker"}}


@pytest.fixture
def api(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> KubernetesApi:
    monkeypatch.setattr(kubernetes_api, "FIRST_PAUSE_SECONDS", 0.02)
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    return KubernetesApi.connect(retry_seconds=60)


def test_an_answer_that_is_no_object_is_not_that_of_an_api_server(server: ApiServer, api: KubernetesApi) -> None:
    server.fail("GET", lambda handler: handler.send_bytes(200, b"null") is None)
    with pytest.raises(KubernetesError, match="not a Kubernetes API server: check KUBECONFIG"):
        api.get(POD)


def test_a_proxy_that_repeats_our_headers_reveals_no_token(server: ApiServer, api: KubernetesApi) -> None:
    server.fail("GET", answer(400, "you sent Authorization: Bearer secret"))
    with pytest.raises(KubernetesError, match="you sent Authorization") as refused:
        api.get(POD)
    assert "Bearer secret" not in str(refused.value)


def test_objects_are_made_read_changed_and_deleted(server: ApiServer, api: KubernetesApi) -> None:
    assert api.namespace == "tests"
    assert api.path("v1", "pods", "worker") == POD
    assert api.path("kubeflow.org/v1", "pytorchjobs") == "/apis/kubeflow.org/v1/namespaces/tests/pytorchjobs"
    assert api.get(POD) is None
    made = api.create(PODS, NEW_POD)
    assert api.get(POD) == made
    changed = api.patch(POD, {"metadata": {"annotations": {"kubetrain/verdict": "failed"}}})
    assert changed is not None
    assert changed["metadata"]["annotations"] == {"kubetrain/verdict": "failed"}
    assert server.headers[-1]["content-type"] == "application/merge-patch+json"
    assert server.headers[-1]["authorization"] == "Bearer secret"
    assert api.delete(POD)
    assert not api.delete(POD)
    assert api.patch(POD, {}) is None


def test_only_the_object_that_was_meant_is_deleted(server: ApiServer, api: KubernetesApi) -> None:
    uid = api.create(PODS, NEW_POD)["metadata"]["uid"]
    assert not api.delete(POD, uid="another's")
    assert POD in server.objects
    assert api.delete(POD, uid=uid)
    assert server.bodies[-1]["propagationPolicy"] == "Background"


def test_a_name_that_is_taken_is_a_conflict(api: KubernetesApi) -> None:
    api.create(PODS, NEW_POD)
    with pytest.raises(Conflict, match="already exists"):
        api.create(PODS, NEW_POD)


@pytest.mark.parametrize("status", [429, 500, 502, 503, 504])
def test_a_transient_error_is_retried(server: ApiServer, api: KubernetesApi, status: int) -> None:
    server.put(POD)
    server.fail(POD, answer(status, "not now"), times=2)
    assert api.get(POD) is not None
    assert len(server.requests) == 3


def test_a_retry_waits_as_long_as_the_server_says(server: ApiServer, api: KubernetesApi) -> None:
    server.put(POD)
    server.fail(POD, answer(429, "too many requests", Retry_After="1"))
    began = time.monotonic()
    assert api.get(POD) is not None
    assert time.monotonic() - began >= 1


def test_requests_wait_for_a_server_that_is_down(server: ApiServer, api: KubernetesApi) -> None:
    server.put(POD)
    assert api.get(POD) is not None
    server.refuse()
    threading.Timer(0.7, server.listen).start()
    assert api.get(POD) is not None


def test_a_request_is_retried_if_its_response_breaks_off(server: ApiServer, api: KubernetesApi) -> None:
    server.put(POD)
    server.fail(POD, cut(after_bytes=10))
    assert api.get(POD) == server.objects[POD]


def test_a_retried_creation_whose_response_was_lost_is_a_conflict(server: ApiServer, api: KubernetesApi) -> None:
    server.fail(f"POST {PODS}", cut(after_bytes=10))
    with pytest.raises(Conflict):
        api.create(PODS, NEW_POD)


def test_retries_end(server: ApiServer, api: KubernetesApi) -> None:
    api.retry_seconds = 0.5
    server.refuse()
    with pytest.raises(Unreachable, match=r"could not answer GET /api/v1.*refused") as caught:
        api.get(POD)
    assert caught.value.is_curable


def test_a_request_to_a_server_that_hangs_is_retried(
    server: ApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubetrain_components.jobs.kubernetes.api.READ_TIMEOUT_SECONDS", 0.3)
    server.put(POD)
    server.fail(POD, hang(600))
    assert api.get(POD) is not None


def test_the_last_requests_of_a_process_do_not_wait_for_a_server_that_hangs(
    server: ApiServer, api: KubernetesApi
) -> None:
    server.put(POD)
    server.fail(POD, hang(600), times=1000)
    api.max_seconds = 0.3
    began = time.monotonic()
    for request in (lambda: api.get(POD), lambda: api.delete(POD, retry_seconds=1.0)):
        with pytest.raises(Unreachable):
            request()
    assert time.monotonic() - began < 5


def test_a_missing_permission_is_named_with_its_remedy(server: ApiServer, api: KubernetesApi) -> None:
    message = (
        'pytorchjobs.kubeflow.org is forbidden: User "system:serviceaccount:ml:runner" cannot create resource '
        '"pytorchjobs" in API group "kubeflow.org" in the namespace "ml"'
    )
    server.fail("POST", answer(403, message))
    with pytest.raises(Forbidden) as caught:
        api.create(PODS, NEW_POD)
    assert str(caught.value).startswith(
        "system:serviceaccount:ml:runner may not create pytorchjobs in the namespace ml: "
    )
    assert "Role in deploy/" in str(caught.value)


@pytest.mark.parametrize(
    "message",
    [
        'pods "a" is forbidden: violates PodSecurity "restricted:latest": privileged',
        'pods "a" is forbidden: exceeded quota: gpus, requested: nvidia.com/gpu=8',
        'admission webhook "validator.training-operator.kubeflow.org" denied the request: no Master',
    ],
)
def test_a_refusal_by_admission_is_not_a_missing_permission(
    server: ApiServer, api: KubernetesApi, message: str
) -> None:
    server.fail("POST", answer(403, message))
    with pytest.raises(KubernetesError) as caught:
        api.create(PODS, NEW_POD)
    assert type(caught.value) is KubernetesError
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("status", "message"),
    [(401, "Unauthorized"), (403, 'pods is forbidden: User "system:anonymous" cannot list resource "pods"')],
)
def test_rejected_credentials_are_reported(server: ApiServer, api: KubernetesApi, status: int, message: str) -> None:
    server.fail("GET", answer(status, message))
    with pytest.raises(Unauthorized, match="log in"):
        api.get(POD)


def test_a_refusal_by_a_server_that_has_just_started_is_retried(server: ApiServer, api: KubernetesApi) -> None:
    server.put(POD)
    server.fail(POD, answer(503, "not ready"))
    server.fail(POD, answer(403, 'User "me" cannot get resource "pods" in API group ""'))
    assert api.get(POD) is not None


def test_a_kind_that_the_cluster_does_not_know_is_not_a_missing_object(server: ApiServer, api: KubernetesApi) -> None:
    def bare(handler: object) -> bool:
        handler.send_bytes(404, b"404 page not found\n")  # type: ignore[attr-defined]
        return True

    server.fail("GET", bare)
    with pytest.raises(UnknownKind, match=r"set another pods\.launcher"):
        api.get("/apis/kubeflow.org/v1/namespaces/tests/pytorchjobs/a")


def test_one_connection_serves_request_after_request(server: ApiServer, api: KubernetesApi) -> None:
    """Even beside streams, and even the last request, which must be sent at once."""
    server.put(POD)
    server.run("worker")
    api.get(PODS)
    with (
        api.stream(PODS, read_timeout=60, watch="true", resourceVersion=0, timeoutSeconds=5),
        api.stream(f"{POD}/log", read_timeout=60, follow="true"),
    ):
        before = server.connections
        for _ in range(3):
            api.get(POD)
        assert api.delete(POD)
    assert server.connections == before == 3


def test_a_stream_is_read_as_it_arrives_and_reports_how_it_ended(server: ApiServer, api: KubernetesApi) -> None:
    run = server.run("worker")
    log = f"{POD}/log"
    with api.stream(log, read_timeout=60, follow="true") as stream:
        server.write(run, b"one\n")
        assert next(iter(stream)) == b"one\n"
    with api.stream(log, read_timeout=0.3, follow="true") as stream, pytest.raises(StreamSilent):
        list(stream)
    server.fail(log, cut(after_bytes=2))
    with api.stream(log, read_timeout=60) as stream, pytest.raises(StreamCut):
        list(stream)
    server.fail(log, answer(410, "too old"))
    with pytest.raises(Gone), api.stream(log, read_timeout=60):
        pass
    run.is_over = True
    with api.stream(log, read_timeout=60) as stream:
        assert b"".join(stream) == b"one\n"


def test_a_stream_is_stopped_from_another_thread(server: ApiServer, api: KubernetesApi) -> None:
    run = server.run("worker")
    server.write(run, b"one\n")
    with api.stream(f"{POD}/log", read_timeout=600, follow="true") as stream:
        chunks = iter(stream)
        next(chunks)
        threading.Timer(0.1, stream.stop).start()
        with pytest.raises(StreamCut):
            next(chunks)


def test_a_host_that_cannot_be_resolved_fails_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with ApiServer() as server:
        path = server.kubeconfig(tmp_path)
    path.write_text(path.read_text().replace("127.0.0.1", "no-such-host.invalid"))
    monkeypatch.setenv("KUBECONFIG", str(path))
    with pytest.raises(KubernetesError, match=r"cannot resolve .*no-such-host\.invalid"):
        KubernetesApi.connect().get(POD)


def test_without_a_cluster_it_says_how_to_name_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(KubernetesError, match="no cluster is configured"):
        KubernetesApi.connect()


@pytest.mark.parametrize("fault", STRAY.values(), ids=STRAY)
def test_a_stray_refusal_of_what_has_worked_is_retried(server: ApiServer, api: KubernetesApi, fault: Fault) -> None:
    server.run("worker")
    for refusals in (0, 3):
        server.fail(f"GET {PODS}", fault, times=refusals)
        assert api.get(PODS) is not None
        server.fail(f"{POD}/log", fault, times=refusals)
        with api.stream(f"{POD}/log", read_timeout=60):
            pass
    assert len(server.requests) == 10


@pytest.mark.parametrize("name", sorted(STRAY.keys() - {"408"}))
def test_a_refusal_of_what_never_worked_is_final(server: ApiServer, api: KubernetesApi, name: str) -> None:
    server.fail("GET", STRAY[name], times=5)
    with pytest.raises(KubernetesError):
        api.get(PODS)
    assert len(server.requests) == 1


def test_a_missing_permission_for_another_operation_is_final(server: ApiServer, api: KubernetesApi) -> None:
    """Reading the pods works, deleting them is refused: no retry changes that."""
    server.put(POD)
    assert api.get(POD) is not None
    server.fail("DELETE", answer(403, 'User "me" cannot delete resource "pods" in API group ""'), times=5)
    with pytest.raises(Forbidden):
        api.delete(POD)
    assert len(server.requests) == 2


def test_a_server_that_asks_for_more_time_than_there_is_gets_another_try(server: ApiServer, api: KubernetesApi) -> None:
    server.put(POD)
    server.fail(POD, answer(503, "overloaded", Retry_After="600"))
    api.retry_seconds = 2
    assert api.get(POD) is not None
    assert len(server.requests) == 2


def test_a_refusal_that_stays_is_reported_in_the_end(
    server: ApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.put(POD)
    assert api.get(POD) is not None
    api.retry_seconds = 6
    monkeypatch.setattr(retries, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    server.fail("GET", answer(401, "Unauthorized"), times=1000)
    with pytest.raises(Unauthorized, match="log in"):
        api.get(POD)
    assert len(server.requests) > 3


def test_a_certificate_that_fails_after_a_good_answer_is_retried(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a server is replaced, and its new CA arrives a moment later."""
    monkeypatch.setattr(kubernetes_api, "FIRST_PAUSE_SECONDS", 0.02)
    old, new = Authority(), Authority()
    ca = tmp_path / "ca.crt"
    ca.write_bytes(old.certificate)
    with ApiServer(tls=old.signed("server", "127.0.0.1").server_context(tmp_path)) as server:
        connection = Connection(server=server.url, ca=Material(file=ca))
        api = KubernetesApi(connection, retry_seconds=60)
        api.get(PODS)
        server.refuse()
        server.tls = new.signed("server", "127.0.0.1").server_context(tmp_path)
        server.listen()
        threading.Timer(0.2, ca.write_bytes, [new.certificate]).start()
        api.get(PODS)
        assert len(server.requests) == 2


def test_a_creation_that_is_retried_says_so_at_once(
    server: ApiServer, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    server.fail("POST", answer(500, "failed calling webhook"), times=3)
    api.create(PODS, NEW_POD)
    (said,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert f"POST {PODS}: failed calling webhook" in said


def test_other_requests_that_are_retried_say_so_only_later(
    server: ApiServer, api: KubernetesApi, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.fail("GET", answer(500, "etcdserver: leader changed"), times=3)
    api.get(POD)
    assert [record for record in caplog.records if record.levelno == logging.WARNING] == []
    monkeypatch.setattr(kubernetes_api, "MAX_PAUSE_SECONDS", 0.02)
    monkeypatch.setattr(retries, "FIRST_WORD_SECONDS", 0.05)
    monkeypatch.setattr(retries, "WORD_SECONDS", 0)
    server.fail("GET", answer(500, "etcdserver: leader changed"), times=20)
    api.get(POD)
    assert len([record for record in caplog.records if record.levelno == logging.WARNING]) > 1


def test_a_field_that_the_server_does_not_know_is_an_error(server: ApiServer, api: KubernetesApi) -> None:
    api.create(PODS, NEW_POD)
    assert server.requests[-1] == f"POST {PODS}?fieldValidation=Strict"


def test_a_misspelt_field_is_named(server: ApiServer, api: KubernetesApi) -> None:
    field = "spec.template.spec.tolerations[0].efect"
    message = f'Job in version "v1" cannot be handled as a Job: strict decoding error: unknown field "{field}"'
    server.fail("POST", answer(400, message))
    with pytest.raises(BadRequest) as caught:
        api.create(PODS, NEW_POD)
    assert f"the field {field} of POST {PODS}: correct its name in pods.pod" in str(caught.value)


def test_a_permission_that_is_asked_for_first_after_a_cut_may_not_be_known_yet(
    server: ApiServer, api: KubernetesApi
) -> None:
    """As when an API server restarts: it cuts streams, and then loads its roles."""
    server.write(server.run("worker"), b"one\n")
    with contextlib.suppress(StreamCut), api.stream(f"{POD}/log", read_timeout=60, follow="true") as stream:
        for _ in stream:
            server.cut_all()
    server.fail("DELETE", answer(403, 'User "me" cannot delete resource "pods" in API group "": role not found'))
    assert api.delete(POD)


def test_a_stream_that_we_stop_is_no_sign_of_trouble(server: ApiServer, api: KubernetesApi) -> None:
    server.write(server.run("worker"), b"one\n")
    with contextlib.suppress(StreamCut), api.stream(f"{POD}/log", read_timeout=60, follow="true") as stream:
        for _ in stream:
            stream.stop()
    server.fail("DELETE", answer(403, 'User "me" cannot delete resource "pods" in API group ""'))
    with pytest.raises(Forbidden):
        api.delete(POD)


def test_each_warning_of_the_server_is_shown_once(
    server: ApiServer, api: KubernetesApi, caplog: pytest.LogCaptureFixture
) -> None:
    warnings = '299 - "spec.a is \\"old\\"", 299 - "spec.b, too"'
    for _ in range(2):
        server.fail("GET", answer(404, "not found", Warning=warnings))
        api.get(POD)
    said = [record.getMessage() for record in caplog.records]
    assert [line.partition(": ")[2] for line in said] == ['spec.a is "old"', "spec.b, too"]


def test_a_conflict_over_a_quota_is_retried_after_a_pause(server: ApiServer, api: KubernetesApi) -> None:
    message = 'Operation cannot be fulfilled on resourcequotas "gpus": the object has been modified'
    server.fail("POST", answer(409, message), times=3)
    assert api.create(PODS, NEW_POD)["metadata"]["name"] == "worker"
    assert len(server.requests) == 4


def test_a_long_list_is_read_in_pages(server: ApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kubernetes_api, "PAGE_SIZE", 2)
    for name in "abcde":
        server.put(f"{PODS}/{name}", status={"phase": "Running"})
    found = api.list_all(PODS, lambda pod: {"name": pod["metadata"]["name"]})
    assert found is not None
    assert found["items"] == [{"name": name} for name in "abcde"]
    assert found["metadata"]["resourceVersion"] == str(server.version)
    assert len(server.requests) == 3


def test_a_list_whose_version_is_forgotten_is_read_again_as_a_whole(
    server: ApiServer, api: KubernetesApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kubernetes_api, "PAGE_SIZE", 2)
    for name in "abc":
        server.put(f"{PODS}/{name}")
    server.fail("continue=", answer(410, "The provided continue parameter is too old"))
    found = api.list_all(PODS)
    assert found is not None
    assert len(found["items"]) == 3
    assert server.requests[-1] == f"GET {PODS}"
