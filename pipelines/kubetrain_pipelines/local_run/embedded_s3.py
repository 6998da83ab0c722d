"""The S3 server of local runs: moto, in its own process, on a free port of the loopback interface.

Its objects are in memory. A run saves those that later runs need as files in the workspace, and restores them. Other
users of this machine, and web pages in a browser, can reach the port: they lack the session token that it demands.

python -m kubetrain_pipelines.local_run.embedded_s3 [BUCKET FOLDER]...     prints its URL and serves until it is killed
"""

import contextlib
import hmac
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.local.loopback import HOST, without_proxy
from kubetrain_components.object_store.open_store import open_store
from kubetrain_trainer.durable_files import write_atomically
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.model_folder import is_inside

NEEDS_DEMO = "run `pip install -e '.[demo]'` in kubetrain's clone, or set data.uri to your own dataset"
# Not the user's AWS settings, which would lead to another server or account.
CREDENTIALS = {
    "AWS_ACCESS_KEY_ID": "kubetrain",
    "AWS_SECRET_ACCESS_KEY": "kubetrain",
    "AWS_SESSION_TOKEN": os.urandom(16).hex(),
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_CONFIG_FILE": os.devnull,
    "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
}


@dataclass(frozen=True)
class EmbeddedS3:
    url: str

    def etags(self, bucket: str) -> dict[str, str]:
        return {item.key: item.etag for item in open_store(f"s3://{bucket}", self.url).list()}

    def save_new_objects(self, bucket: str, folder: Path, known: Mapping[str, str]) -> None:
        """Save the bucket's objects as files, except those that still have their known ETag.

        Raises:
            KubetrainError: if a key would lead out of the folder.
        """
        store = open_store(f"s3://{bucket}", self.url)
        for item in store.list():
            if known.get(item.key) == item.etag:
                continue
            if not is_inside(item.key):
                raise KubetrainError(f"cannot save s3://{bucket}/{item.key}: rename it, as it leads out of {folder}")
            path = folder / item.key
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, store.read(item.key).read())


def last_line(text: str) -> str:
    return (text.strip().splitlines() or ["it printed nothing"])[-1]


@contextlib.contextmanager
def embedded_s3(environment: Mapping[str, str], log: Path, buckets: Mapping[str, Path]) -> Iterator[EmbeddedS3]:
    """Start the server with these buckets, filled from their folders if those exist."""
    folders = [str(part) for bucket in buckets.items() for part in bucket]
    with log.open("wb") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", __spec__.name, *folders],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            start_new_session=True,
        )
        try:
            assert server.stdout is not None
            url = server.stdout.readline().decode().strip()
            if not url:
                raise KubetrainError(
                    f"the embedded S3 server did not start ({last_line(log.read_text())}): {NEEDS_DEMO}"
                )
            yield EmbeddedS3(url)
        finally:
            server.kill()
            server.wait()


def without_user_settings(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: value for name, value in environment.items() if not name.startswith("AWS_")}
    return kept | without_proxy(kept) | CREDENTIALS


@contextlib.contextmanager
def replaced_environment(environment: Mapping[str, str]) -> Iterator[None]:
    """Replace this process's environment, because boto3 would otherwise read the user's profile."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(environment)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _serve(buckets: Mapping[str, Path]) -> None:
    os.environ |= {"S3_IGNORE_SUBDOMAIN_BUCKETNAME": "true", "MOTO_DISABLE_GLOBAL_CORS": "true"}
    from moto.server import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import make_server

    for bucket, folder in buckets.items():
        _fill(bucket, folder)
    application = _for_holders(os.environ["AWS_SESSION_TOKEN"], DomainDispatcherApplication(create_backend_app))
    server = make_server(HOST, 0, application, threaded=True, request_handler=MotoRequestHandler)
    print(f"http://{HOST}:{server.port}", flush=True)
    server.serve_forever()


def _for_holders(token: str, application: Callable[..., Any]) -> Callable[..., Any]:
    """Refuse requests without the token."""

    def guarded(request: Mapping[str, Any], start_response: Callable[..., Any]) -> Any:
        if hmac.compare_digest(request.get("HTTP_X_AMZ_SECURITY_TOKEN", "").encode(), token.encode()):
            return application(request, start_response)
        start_response("403 Forbidden", [("Content-Type", "application/xml")])
        return [b"<Error><Code>AccessDenied</Code><Message>the session token is missing or wrong</Message></Error>"]

    return guarded


def _fill(bucket: str, folder: Path) -> None:
    """Fill a bucket through moto's internals, because requests for the digits would take ten seconds."""
    from moto.backends import get_backend
    from moto.core import DEFAULT_ACCOUNT_ID

    storage = get_backend("s3")[DEFAULT_ACCOUNT_ID]["aws"]
    storage.create_bucket(bucket, CREDENTIALS["AWS_DEFAULT_REGION"])
    for path in folder.rglob("*"):
        if path.is_file():
            storage.put_object(bucket, path.relative_to(folder).as_posix(), path.read_bytes())


if __name__ == "__main__":
    _serve(dict(zip(sys.argv[1::2], map(Path, sys.argv[2::2]), strict=True)))
