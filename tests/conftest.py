"""Fixtures that several folders share."""

import gc
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from kubetrain_components.jobs.local.loopback import HOST
from kubetrain_components.jobs.local.process_guard import process_guard
from kubetrain_pipelines.local_run.digits import write_digits
from kubetrain_pipelines.local_run.embedded_s3 import CREDENTIALS, EmbeddedS3, embedded_s3
from support.cloud_servers import serving_azure, serving_gcs

# What a shell starts in the background ignores interrupts, and so would every process that the tests interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="module")
def quick_garbage_collections() -> Iterator[None]:
    """What a module imported, as PyTorch, is no garbage: to search it takes longer each time than most tests."""
    yield
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Skip what is left when CI's time is nearly over, as on a machine of half the usual speed."""
    if time.time() > float(os.environ.get("SKIP_TESTS_AFTER", "inf")):
        pytest.skip("no time is left")


def pytest_unconfigure() -> None:
    gc.unfreeze()  # at Python's end libraries complain of what was not taken down


@pytest.fixture(autouse=True, scope="session")
def no_contexts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The developer's own contexts would lead tests to a real Kubeflow Pipelines."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(tmp_path_factory.mktemp("config")))
        yield


@pytest.fixture(scope="session")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedS3]:
    """A real S3 server in a process of its own."""
    log = tmp_path_factory.mktemp("s3") / "s3.log"
    with process_guard() as mark, embedded_s3({**os.environ, **mark, **CREDENTIALS}, log, {}) as server:
        yield server


@pytest.fixture(scope="session")
def gcs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a server of Google Cloud Storage."""
    with serving_gcs(tmp_path_factory.mktemp("gcs")) as variables:
        yield variables


@pytest.fixture(scope="session")
def azure(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The variables of a server of Azure Blob Storage."""
    with serving_azure(tmp_path_factory.mktemp("azure")) as variables:
        yield variables


@pytest.fixture
def s3_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {**CREDENTIALS, "NO_PROXY": HOST, "no_proxy": HOST}.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def bucket(s3: EmbeddedS3, s3_credentials: None, request: pytest.FixtureRequest) -> str:
    """An empty bucket of this test's own."""
    name = f"bucket-{abs(hash(request.node.nodeid)):x}"[:40]
    token = {"x-amz-security-token": CREDENTIALS["AWS_SESSION_TOKEN"]}
    urlopen(Request(f"{s3.url}/{name}", method="PUT", headers=token)).close()
    return name


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits as a folder: what a run on data of one's own starts from."""
    folder = tmp_path_factory.mktemp("digits")
    write_digits(folder)
    return folder
