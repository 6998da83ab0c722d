"""Requests to a Kubeflow Pipelines that refuses, hangs or is unreachable; and secrets, which are never shown."""

import ssl
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from kubetrain_pipelines.kubeflow import kfp_api
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import (
    Conflict,
    Forbidden,
    KfpError,
    NotFound,
    Unanswered,
    Unauthorized,
    Unreachable,
)
from kubetrain_pipelines.kubeflow.run import recent_runs
from kubetrain_pipelines.kubeflow.token_command import TokenCommand
from kubetrain_trainer.errors import InvalidSetting
from support.api_server import Fault, Handler, answer, cut, hang
from support.kfp_server import KfpServer

CANARY = "canary-6d1f"
RUN = {"display_name": "mine"}


@pytest.fixture
def server() -> Iterator[KfpServer]:
    with KfpServer() as server:
        yield server


def connect(
    server: KfpServer, *, retry_seconds: float = 60.0, timeout_seconds: float = 60.0, **connection: Any
) -> KfpApi:
    connection.setdefault("environment", {})
    return KfpApi(
        Connection(endpoint=server.endpoint, **connection), retry_seconds=retry_seconds, timeout_seconds=timeout_seconds
    )


@pytest.fixture
def api(server: KfpServer, monkeypatch: pytest.MonkeyPatch) -> KfpApi:
    monkeypatch.setattr(kfp_api, "FIRST_PAUSE_SECONDS", 0.01)
    return connect(server)


def html(status: int, content: bytes = b"<html>Log in to Dex</html>", **headers: str) -> Fault:
    def fault(handler: Handler) -> bool:
        handler.send_bytes(status, content, headers)
        return True

    return fault


def test_a_list_is_read_page_by_page(server: KfpServer, api: KfpApi, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kfp_api, "PAGE_SIZE", 2)
    made = [api.post("/runs", {"display_name": f"run {number}"}) for number in range(5)]
    assert list(api.list_all("runs", "/runs")) == made
    assert list(api.list_all("experiments", "/experiments")) == []


@pytest.mark.parametrize("fault", [answer(503), answer(500, "no database"), cut(0), answer(429)])
def test_a_read_is_retried(server: KfpServer, api: KfpApi, fault: Fault) -> None:
    made = api.post("/runs", RUN)
    server.fail("GET /", fault, times=3)
    assert api.get(f"/runs/{made['run_id']}") == made


@pytest.mark.parametrize("fault", [answer(503), cut(0), hang(600)])
def test_a_change_is_sent_once(server: KfpServer, fault: Fault) -> None:
    server.fail("POST /", fault)
    with pytest.raises(Unanswered, match=r"did not answer POST /runs .*may or may not have been carried out"):
        connect(server, timeout_seconds=0.3).post("/runs", RUN)
    assert len(server.requests) == 1


def test_a_server_that_hangs_or_is_unreachable_is_given_up_after_the_retry_time(server: KfpServer) -> None:
    server.fail("GET /", hang(600), times=10**5)
    api = connect(server, retry_seconds=0.5, timeout_seconds=0.2)
    with pytest.raises(Unreachable, match=r"does not answer .*: check the endpoint, and that its API server"):
        api.get("/runs")
    server.refuse()
    with pytest.raises(Unreachable, match=r"does not answer \(.*refused.*\)"):
        api.get("/runs")


@pytest.mark.parametrize(
    ("fault", "kind", "expected"),
    [
        (
            answer(401, "no token"),
            Unauthorized,
            r"authentication failed .*\(401: no token\): pass a token, .*create token .*pipelines\.kubeflow\.org",
        ),
        (html(302, Location="/dex/auth"), Unauthorized, "log in again and pass the new cookie with --cookie-file"),
        (
            answer(403, "RBAC: access denied"),
            Forbidden,
            r"denied GET .*\(403: RBAC: access denied\): .*--namespace, .*kubectl create token",
        ),
        (answer(404, "no run"), NotFound, r"refused GET /apis/v2beta1/runs \(404\): no run"),
        (answer(409, "it is there"), Conflict, "it is there"),
        (
            answer(400, "an empty namespace in multi-user mode"),
            KfpError,
            "is multi-user .* with --namespace",
        ),
        (html(200), KfpError, "is not the API of Kubeflow Pipelines: use http://localhost:8888"),
        (html(200, b"[]"), KfpError, "is not the API of Kubeflow Pipelines: use http://localhost:8888"),
    ],
)
def test_a_refusal_says_what_to_do(
    server: KfpServer, api: KfpApi, fault: Fault, kind: type[KfpError], expected: str
) -> None:
    server.fail("GET /", fault)
    with pytest.raises(kind, match=expected) as refused:
        api.get("/runs")
    assert "<html>" not in str(refused.value)
    assert len(server.requests) == 1


def test_null_stands_for_an_empty_list(server: KfpServer, api: KfpApi) -> None:
    server.fail("GET /", html(200, b'{"runs": null}'), times=2)
    assert recent_runs(api) == []
    assert list(api.list_all("runs", "/runs")) == []


@pytest.mark.parametrize(
    ("status", "location", "kind", "expected"),
    [
        (
            308,
            "https://127.0.0.1/pipeline/apis/v2beta1/runs",
            KfpError,
            "set the endpoint to https://127.0.0.1/pipeline$",
        ),
        (301, "https://127.0.0.1:8443/apis/v2beta1/runs", KfpError, "set the endpoint to https://127.0.0.1:8443$"),
        (302, "/dex/auth?state=canary-6d1f", Unauthorized, r"redirects to http://127\.0\.0\.1:\d+/dex/auth \(302\)"),
        (303, "https://login.example/x#canary-6d1f", Unauthorized, r"redirects to https://login\.example/x \(303\)"),
    ],
)
def test_a_redirect_says_where_it_leads(
    server: KfpServer, api: KfpApi, status: int, location: str, kind: type[KfpError], expected: str
) -> None:
    server.fail("GET /", html(status, Location=location))
    with pytest.raises(kind, match=expected) as refused:
        api.get("/runs")
    assert type(refused.value) is kind
    assert CANARY not in str(refused.value)


def test_requests_go_through_the_proxy_of_the_environment(server: KfpServer) -> None:
    proxy = server.endpoint.replace("http://", "http://me:proxy-password@")
    connection = Connection(endpoint="http://kfp.example", environment={"HTTP_PROXY": proxy})
    assert KfpApi(connection).get("/runs") == {}
    assert server.requests == ["GET http://kfp.example/apis/v2beta1/runs"]
    assert server.headers[0]["proxy-authorization"].startswith("Basic ")


@pytest.mark.parametrize(
    ("endpoint", "environment", "proxy"),
    [
        ("http://kfp.example", {"http_proxy": "proxy:3128"}, "http://proxy:3128"),
        ("http://kfp.example", {"HTTP_PROXY": "http://upper", "http_proxy": "http://lower"}, "http://lower"),
        ("https://kfp.example/pipeline", {"HTTP_PROXY": "http://plain", "HTTPS_PROXY": "http://tls"}, "http://tls"),
        ("https://kfp.example", {"HTTP_PROXY": "http://plain"}, ""),
        ("https://kfp.example", {"ALL_PROXY": "http://all"}, "http://all"),
        ("https://kfp.example", {"HTTPS_PROXY": "http://tls", "NO_PROXY": "a.example,.example"}, ""),
        ("https://10.96.1.2:8888", {"HTTPS_PROXY": "http://tls", "NO_PROXY": "10.96.0.0/12"}, ""),
        ("https://10.112.1.2:8888", {"HTTPS_PROXY": "http://tls", "NO_PROXY": "10.96.0.0/12"}, "http://tls"),
        ("http://localhost:8888", {"HTTP_PROXY": "http://plain"}, ""),
        ("http://kfp.example", {}, ""),
    ],
)
def test_the_proxy_is_the_one_of_the_endpoint(endpoint: str, environment: dict[str, str], proxy: str) -> None:
    assert Connection(endpoint=endpoint, environment=environment).proxy == proxy


def test_short_values_of_a_cookie_are_not_secrets(server: KfpServer) -> None:
    environment = {"KF_PIPELINES_COOKIE": f"lang=e; session={CANARY}"}
    server.fail("GET /", answer(404, f"the server has never seen {CANARY}"))
    with pytest.raises(NotFound, match=r"the server has never seen \*\*\*$"):
        connect(server, environment=environment).get("/runs")


def test_the_innermost_of_the_servers_messages_is_shown(api: KfpApi) -> None:
    with pytest.raises(NotFound, match=r"refused GET /apis/v2beta1/runs/nosuch \(404\): nosuch not found$"):
        api.get("/runs/nosuch")


def ways_to_pass(secret: str, folder: Path) -> list[dict[str, Any]]:
    file = folder / "token"
    file.write_text(f"{secret}\n")
    return [
        {"token_file": file},
        {"environment": {"KF_PIPELINES_TOKEN": secret}},
        {"environment": {"KF_PIPELINES_SA_TOKEN_PATH": str(file)}},
        {"token_command": TokenCommand(f"cat {file}")},
    ]


def test_tokens_come_from_an_option_a_variable_or_a_command(server: KfpServer, tmp_path: Path) -> None:
    server.token = CANARY
    for way in ways_to_pass(CANARY, tmp_path):
        assert connect(server, **way).get("/runs") == {}
    with pytest.raises(Unauthorized):
        connect(server).get("/runs")


def test_a_token_that_is_renewed_is_read_again(server: KfpServer, tmp_path: Path) -> None:
    server.token = CANARY
    file = tmp_path / "token"
    file.write_text("old")
    api = connect(server, token_file=file)
    with pytest.raises(Unauthorized):
        api.get("/runs")
    file.write_text(CANARY)
    assert api.get("/runs") == {}


def test_a_cookie_is_sent_as_it_is(server: KfpServer, tmp_path: Path) -> None:
    file = tmp_path / "cookie"
    file.write_text(f"authservice_session={CANARY}\n")
    connect(server, cookie_file=file).get("/runs")
    cookies = (f"a=b; c={CANARY}", f"a={CANARY};", f"a={CANARY}; x=")
    for cookie in cookies:
        connect(server, environment={"KF_PIPELINES_COOKIE": cookie}).get("/runs")
    assert [each["cookie"] for each in server.headers] == [f"authservice_session={CANARY}", *cookies]


def test_no_secret_is_shown(server: KfpServer, tmp_path: Path) -> None:
    server.token = "another"
    cookie = {"KF_PIPELINES_COOKIE": f"session={CANARY}-cookie"}
    for way in ways_to_pass(CANARY, tmp_path):
        environment = {**way.pop("environment", {}), **cookie}
        api = connect(server, environment=environment, **way)
        server.fail("DELETE /", answer(400, f"what is session={CANARY}-cookie?"))
        for request in (api.get, api.post, api.delete):
            with pytest.raises(KfpError) as refused:
                request("/runs")
            assert CANARY not in f"{refused.value!r} {refused.value} {api.connection!r}"
    assert CANARY not in f"{server.bodies} {server.requests}"
    assert {name for each in server.headers for name, value in each.items() if CANARY in value} == {
        "authorization",
        "cookie",
    }


def test_no_secret_follows_a_redirect(server: KfpServer) -> None:
    with KfpServer() as other:
        server.fail("GET /", html(307, Location=other.endpoint))
        with pytest.raises(Unauthorized):
            connect(server, environment={"KF_PIPELINES_TOKEN": CANARY}).get("/runs")
        assert other.requests == []


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """Write a self-signed certificate of localhost, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    key_form = (serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, *key_form))
    return paths


def test_a_private_certificate_is_trusted_if_it_is_passed(server: KfpServer, tmp_path: Path) -> None:
    certificate, key = write_certificate(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    assert server._server
    server._server.socket = context.wrap_socket(server._server.socket, server_side=True)
    endpoint = server.endpoint.replace("http://127.0.0.1", "https://localhost")
    assert KfpApi(Connection(endpoint=endpoint, ca_file=certificate, environment={})).get("/runs") == {}
    with pytest.raises(KfpError, match=r"certificate of .* is not trusted .*--ca-file"):
        KfpApi(Connection(endpoint=endpoint, environment={})).get("/runs")


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, "no Kubeflow Pipelines endpoint: run `kubetrain config set NAME --endpoint URL`, or set --endpoint"),
        ({"endpoint": "localhost:8888"}, "endpoint 'localhost:8888' is not valid"),
        ({"endpoint": "http://host:port"}, "endpoint 'http://host:port' is not valid"),
        ({"endpoint": f"http://me:{CANARY}@[kfp"}, "the endpoint is not a URL"),
        ({"endpoint": f"https://me:{CANARY}@kfp"}, "the endpoint of kfp contains a password"),
        (
            {"endpoint": "http://kfp", "token_file": Path("/nosuch")},
            "--token-file /nosuch cannot be read (No such",
        ),
        ({"endpoint": "http://kfp", "ca_file": Path("/nosuch")}, "the CA file /nosuch is not a file"),
        (
            {"endpoint": "http://kfp", "environment": {"KF_PIPELINES_TOKEN": f"Bearer {CANARY}"}},
            "KF_PIPELINES_TOKEN is not a token: it must be one word, without a leading 'Bearer'",
        ),
        (
            {"endpoint": "http://kfp", "environment": {"KF_PIPELINES_COOKIE": CANARY}},
            "KF_PIPELINES_COOKIE is not a cookie: use NAME=VALUE",
        ),
        (
            {"endpoint": "http://kfp", "environment": {"KF_PIPELINES_COOKIE": f"session=ü{CANARY}"}},
            "KF_PIPELINES_COOKIE is not a cookie: use NAME=VALUE",
        ),
        (
            {"endpoint": "http://kfp", "environment": {"ALL_PROXY": f"socks5://me:{CANARY}@proxy:1080"}},
            "proxies of the kind socks5:// are not supported",
        ),
        (
            {"endpoint": "https://kfp", "environment": {"HTTPS_PROXY": f"http://me:{CANARY}@[bad"}},
            "the proxy (HTTPS_PROXY, HTTP_PROXY or ALL_PROXY) is not a valid URL",
        ),
    ],
)
def test_an_unusable_connection_is_refused_before_any_request(options: dict[str, Any], expected: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        KfpApi(Connection(**{"environment": {}, **options})).connection.headers()
    assert expected in str(refused.value)
    assert CANARY not in str(refused.value)
