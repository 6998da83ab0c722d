"""Pods and machines that get their credentials from the cloud."""

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from kubetrain_components.object_store.azure import credentials as azure
from kubetrain_components.object_store.gcs import credentials as google
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access
from support.faulty_s3 import FaultyS3

ROLE = "arn:aws:iam::123456789012:role/reader"
ISSUED = {"AccessKeyId": "issued-key", "SecretAccessKey": "secret", "Expiration": "2099-01-01T00:00:00Z"}
ASSUMED = (
    "<AssumeRoleWithWebIdentityResponse><AssumeRoleWithWebIdentityResult><Credentials>"
    + "".join(f"<{name}>{value}</{name}>" for name, value in {**ISSUED, "SessionToken": "issued-token"}.items())
    + "</Credentials></AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
)
GOOGLE = {"Metadata-Flavor": "Google", "content-type": "application/json"}
"""Headers by which Google's client knows a metadata server."""
TOKEN = json.dumps({"access_token": "issued-token", "expires_in": 3600, "expires_on": 4070908800, "token_type": "B"})
METADATA_SERVER = "google.auth.compute_engine._metadata._GCE_METADATA_HOST"
"""What the client has read of the environment when it was imported."""
METADATA = {
    "PUT /latest/api/token": "session",
    "GET /latest/meta-data/iam/security-credentials/": "reader",
    "GET /latest/meta-data/iam/security-credentials/reader": json.dumps(
        {
            "Code": "Success",
            "Type": "AWS-HMAC",
            "Token": "issued-token",
            "LastUpdated": "2026-01-01T00:00:00Z",
            **ISSUED,
        }
    ),
}


@contextlib.contextmanager
def cloud(answers: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Serve these responses; yield the URL and the bodies that are received."""
    sent: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            sent.append(self.rfile.read(int(self.headers.get("content-length", 0))).decode())
            body = answers.get(f"{self.command} {self.path.partition('?')[0]}", "").encode()
            self.send_response(200 if body else 404)
            for name, value in GOOGLE.items():
                self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_PUT = do_POST = answer  # noqa: N815 - http.server's names

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", sent
        server.shutdown()


@pytest.fixture(autouse=True)
def no_other_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE", "AWS_EC2_METADATA_DISABLED"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))


def assert_requests_use_issued_credentials() -> None:
    s3 = FaultyS3()
    s3.put("data/key", b"x")
    with s3.serving() as url:
        assert open_store("s3://bucket/data", url).read("key").read() == b"x"
    assert "Credential=issued-key/" in s3.headers[-1]["authorization"]
    assert s3.headers[-1]["x-amz-security-token"] == "issued-token"


def test_a_token_of_a_service_account_is_exchanged_for_credentials(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("token-of-the-account")
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", str(tmp_path / "token"))
    monkeypatch.setenv("AWS_ROLE_ARN", ROLE)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    with cloud({"POST /": ASSUMED}) as (url, sent):
        monkeypatch.setenv("AWS_ENDPOINT_URL_STS", url)
        assert_requests_use_issued_credentials()
    assert "WebIdentityToken=token-of-the-account" in sent[0]


def test_a_machines_role_gives_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    with cloud(METADATA) as (url, _):
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", url)
        assert_requests_use_issued_credentials()


def test_a_service_account_of_google_gives_a_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GKE's Workload Identity answers as a machine's metadata server does."""
    for name in (google.KEY_VARIABLE, "GOOGLE_APPLICATION_CREDENTIALS", "NO_GCE_CHECK"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    account = "/computeMetadata/v1/instance/service-accounts/default/"
    answers = {"GET /": "ok", "GET /computeMetadata/v1/project/project-id": '"team"', f"GET {account}token": TOKEN}
    with cloud({**answers, f"GET {account}": json.dumps({"email": "reader", "scopes": []})}) as (url, _):
        monkeypatch.setenv("GCE_METADATA_IP", url.removeprefix("http://"))
        monkeypatch.setattr(METADATA_SERVER, url.removeprefix("http://"))
        headers = google.signer("gs://bucket/data", pays=True)("GET", "https://storage.googleapis.com/", {})
    assert (headers["authorization"], headers["x-goog-user-project"]) == ("Bearer issued-token", "team")


def test_a_managed_identity_of_azure_gives_a_token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET", "IDENTITY_ENDPOINT"):
        monkeypatch.delenv(name, raising=False)
    with cloud({"GET /metadata/identity/oauth2/token": TOKEN}) as (url, _):
        monkeypatch.setenv("AZURE_POD_IDENTITY_AUTHORITY_HOST", url)
        headers = azure.signer("account", "az://account/data", Access.CREDENTIALS)("GET", "https://a/", {})
    assert headers["authorization"] == "Bearer issued-token"
