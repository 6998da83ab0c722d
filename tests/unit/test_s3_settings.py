"""Proxies, regions, CA certificates and credentials: as botocore has them, or refused in a sentence."""

import base64
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.s3.origin import Origin
from kubetrain_components.object_store.s3.requests import S3Requests
from kubetrain_components.object_store.store import Access, AccessRefused, StoreError
from kubetrain_trainer.errors import InvalidSetting
from support.faulty_s3 import FaultyS3, Handler, Stored
from support.proxy import Proxy
from unit.test_s3_requests import self_signed

PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy", "all_proxy")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*PROXY_VARIABLES, "AWS_DEFAULT_REGION", "AWS_REGION", "AWS_CA_BUNDLE", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def s3() -> FaultyS3:
    s3 = FaultyS3()
    s3.put("key", b"content")
    return s3


class TestProxies:
    @pytest.mark.parametrize(
        ("value", "host", "port"),
        [
            ("proxy.corp:3128", "proxy.corp", 3128),
            ("//proxy.corp:3128", "proxy.corp", 3128),
            ("http://proxy.corp", "proxy.corp", 80),
            ("https://proxy.corp", "proxy.corp", 443),
            ("http://user:p%40ss@proxy.corp:3128", "proxy.corp", 3128),
            ("http://[fd00::5]:3128", "fd00::5", 3128),
        ],
    )
    def test_every_spelling_of_a_proxy_is_understood(
        self, monkeypatch: pytest.MonkeyPatch, value: str, host: str, port: int
    ) -> None:
        monkeypatch.setenv("HTTPS_PROXY", value)
        proxy = Origin.of_url("https://s3.example.org/bucket").proxy
        assert proxy is not None
        assert (proxy.host, proxy.port) == (host, port)
        assert (proxy.tls is not None) == value.startswith("https")
        expected = "Basic " + base64.b64encode(b"user:p@ss").decode() if "user" in value else ""
        assert proxy.authorization == expected

    @pytest.mark.parametrize(
        ("no_proxy", "is_direct"),
        [("minio.example:9000", True), ("minio.example:9001", False), ("example", True), ("*", True), ("other", False)],
    )
    def test_no_proxy_means_what_it_means_to_botocore(
        self, monkeypatch: pytest.MonkeyPatch, no_proxy: str, is_direct: bool
    ) -> None:
        monkeypatch.setenv("HTTP_PROXY", "http://proxy.corp:3128")
        monkeypatch.setenv("NO_PROXY", no_proxy)
        assert (Origin.of_url("http://minio.example:9000").proxy is None) == is_direct

    @pytest.mark.parametrize("value", ["socks5://user:hunter2@proxy.corp:1080", "socks4a://proxy.corp"])
    def test_a_proxy_of_another_kind_is_refused(self, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
        monkeypatch.setenv("HTTP_PROXY", value)
        with pytest.raises(InvalidSetting, match=r"proxy\.corp.*not SOCKS.*NO_PROXY") as caught:
            open_store("s3://bucket", "http://minio.example:9000", Access.ANONYMOUS)
        assert "hunter2" not in str(caught.value)

    @pytest.mark.parametrize("is_encrypted", [False, True])
    @pytest.mark.parametrize("proxy_is_encrypted", [False, True])
    def test_requests_pass_through_a_proxy(
        self,
        s3: FaultyS3,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        is_encrypted: bool,
        proxy_is_encrypted: bool,
    ) -> None:
        certificate = self_signed(tmp_path)
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(certificate)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(certificate))
        with s3.serving(tls if is_encrypted else None) as url, Proxy(tls if proxy_is_encrypted else None) as proxy:
            monkeypatch.setenv("HTTPS_PROXY" if is_encrypted else "HTTP_PROXY", proxy.url)
            store = open_store("s3://bucket", url, Access.ANONYMOUS)
            assert [each.key for each in store.list()] == ["key"]
            assert store.read("key").read() == b"content"
        target = url.partition("://")[2]
        assert proxy.seen == ([f"CONNECT {target}"] if is_encrypted else [f"GET http://{target}"])


class TestRegions:
    @pytest.mark.parametrize(
        ("variables", "region"),
        [
            ({"AWS_REGION": "eu-west-1"}, "eu-west-1"),
            ({"AWS_REGION": "eu-west-1", "AWS_DEFAULT_REGION": "eu-west-2"}, "eu-west-2"),
            ({}, "us-east-1"),
        ],
    )
    def test_the_region_comes_from_either_variable(
        self, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], region: str
    ) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        assert S3Requests("bucket", "", Access.ANONYMOUS)._location.signer.region == region

    def test_an_access_point_is_signed_for_its_own_region(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
        location = S3Requests("arn:aws:s3:us-west-2:123456789012:accesspoint:mine", "", Access.ANONYMOUS)._location
        assert location.signer.region == "us-west-2"
        assert location.origin.host == "mine-123456789012.s3-accesspoint.us-west-2.amazonaws.com"

    @pytest.mark.parametrize("status", [400, 301, 307])
    def test_a_region_is_learned_from_the_body_or_by_asking(
        self, s3: FaultyS3, s3_credentials: None, status: int
    ) -> None:
        def elsewhere(handler: Handler, _: Stored) -> bool:
            if "/eu-west-9/" in handler.headers["Authorization"]:
                return False
            region = "<Region>eu-west-9</Region>" if status == 400 else ""
            body = f"<Error><Code>AuthorizationHeaderMalformed</Code>{region}</Error>".encode()
            handler.answer(status, body, {})
            return True

        s3.bucket_headers = {"x-amz-bucket-region": "eu-west-9"}
        s3.fail("list", elsewhere, times=2)
        with s3.serving() as url:
            assert [each.key for each in open_store("s3://bucket", url).list()] == ["key"]

    def test_regions_that_send_to_one_another_end_with_an_error(self, s3: FaultyS3, s3_credentials: None) -> None:
        def elsewhere(handler: Handler, _: Stored) -> bool:
            other = "eu-west-2" if "/eu-west-1/" in handler.headers["Authorization"] else "eu-west-1"
            handler.answer(301, b"<Error><Code>PermanentRedirect</Code></Error>", {"x-amz-bucket-region": other})
            return True

        s3.fail("list", elsewhere, times=99)
        with s3.serving() as url, pytest.raises(StoreError, match="PermanentRedirect"):
            list(open_store("s3://bucket", url).list())


class TestCertificates:
    @pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), ("no certificate", "no PEM certificates")])
    def test_certificates_that_cannot_be_used_are_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: str | None, reason: str
    ) -> None:
        path = tmp_path / "ca.pem"
        if content:
            path.write_text(content)
        monkeypatch.setenv("AWS_CA_BUNDLE", str(path))
        with pytest.raises(InvalidSetting, match=rf"{path}' cannot be used \({reason}.*AWS_CA_BUNDLE"):
            open_store("s3://bucket", "https://minio.example", Access.ANONYMOUS)


class TestCredentials:
    @pytest.fixture
    def sts(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
        """A server of tokens that refuses with these statuses, in order."""
        statuses: list[int] = []

        class Refusing(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                self.rfile.read(int(self.headers["content-length"]))
                body = b"<ErrorResponse><Error><Code>No</Code><Message>not you</Message></Error></ErrorResponse>"
                self.send_response(statuses[0])
                self.send_header("content-length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                pass

        role = "[profile role]\nrole_arn = arn:aws:iam::123456789012:role/reader\nsource_profile = base\n"
        base = "[profile base]\naws_access_key_id = key\naws_secret_access_key = secret\n"
        (tmp_path / "config").write_text(role + base)
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_PROFILE", "role")
        monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
        with ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
            thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
            thread.start()
            monkeypatch.setenv("AWS_ENDPOINT_URL_STS", f"http://127.0.0.1:{server.server_port}")
            yield statuses
            server.shutdown()
            thread.join()

    @pytest.mark.parametrize("use", ["read", "write"])
    def test_a_role_that_may_not_be_assumed_is_named(self, s3: FaultyS3, sts: list[int], use: str) -> None:
        sts.append(403)
        with s3.serving() as url:
            store = open_store("s3://bucket", url)
            with pytest.raises(AccessRefused, match=r"credentials for s3://bucket/ cannot.*not you.*check the role"):
                store.read("key").read() if use == "read" else store.write("key", b"x")

    def test_a_busy_token_server_is_no_refusal(self, s3: FaultyS3, sts: list[int]) -> None:
        sts.append(503)
        with s3.serving() as url, pytest.raises(StoreError, match="cannot be obtained") as caught:
            open_store("s3://bucket", url).read("key").read()
        assert not isinstance(caught.value, AccessRefused)
        assert isinstance(caught.value.__cause__, ClientError)
