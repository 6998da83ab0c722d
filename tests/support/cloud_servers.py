"""Emulators of Google Cloud Storage and Azure Blob Storage: fake-gcs-server and Azurite."""

import base64
import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from urllib.request import Request, urlopen

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from support.go_programs import CACHE, go_program
from support.s3_servers import wait_until_open

FAKE_GCS_VERSION, AZURITE_VERSION = "v1.56.1", "3.35.0"
ACCOUNT = "devstoreaccount1"
KEY = base64.b64encode(b"the key of an account of Azurite").decode()


def built_fake_gcs() -> Path:
    install = f"go install github.com/fsouza/fake-gcs-server@{FAKE_GCS_VERSION}"
    return go_program("fake-gcs-server", FAKE_GCS_VERSION, (install,))


def installed_azurite() -> Path:
    folder = CACHE / f"azurite-{AZURITE_VERSION}"
    folder.mkdir(parents=True, exist_ok=True)
    program, mark = folder / "node_modules" / ".bin" / "azurite-blob", folder / "installed"
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not mark.exists():
            if not shutil.which("npm"):
                pytest.skip("Azurite is installed with npm, which is not installed here")
            command = [
                "npm",
                "install",
                "--no-audit",
                "--no-fund",
                "--prefix",
                str(folder),
                f"azurite@{AZURITE_VERSION}",
            ]
            done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            mark.touch()
    return program


@contextlib.contextmanager
def serving_gcs(folder: Path) -> Iterator[dict[str, str]]:
    """Serve Google Cloud Storage and yield the variables with which it is found."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    options = ("-backend", "memory", "-scheme", "http", "-host", "127.0.0.1", "-port", str(port))
    command = [str(built_fake_gcs()), *options, "-public-host", f"127.0.0.1:{port}", "-external-url", url]
    with _running(command, port, folder / "gcs.log"):
        yield {"STORAGE_EMULATOR_HOST": url}


@contextlib.contextmanager
def serving_azure(folder: Path) -> Iterator[dict[str, str]]:
    """Serve Azure Blob Storage and yield the variables with which it is found."""
    (port,) = free_ports(1)
    options = ("--inMemoryPersistence", "--silent", "--skipApiVersionCheck", "--blobHost", "127.0.0.1")
    command = [str(installed_azurite()), *options, "--blobPort", str(port)]
    accounts = {**os.environ, "AZURITE_ACCOUNTS": f"{ACCOUNT}:{KEY}"}
    with _running(command, port, folder / "azurite.log", accounts):
        yield {"AZURE_STORAGE_ENDPOINT": f"http://127.0.0.1:{port}/{ACCOUNT}", "AZURE_STORAGE_KEY": KEY}


def make_bucket(variables: Mapping[str, str], name: str) -> None:
    url = f"{variables['STORAGE_EMULATOR_HOST']}/storage/v1/b"
    body = f'{{"name": "{name}"}}'.encode()
    urlopen(Request(url, data=body, headers={"Content-Type": "application/json"})).close()


def make_container(variables: Mapping[str, str], name: str, access: str = "") -> None:
    from kubetrain_components.object_store.azure.credentials import VERSION, with_signature

    url = f"{variables['AZURE_STORAGE_ENDPOINT']}/{name}?restype=container"
    public = {"x-ms-blob-public-access": access} if access else {}
    sent = with_signature(ACCOUNT, base64.b64decode(KEY), "PUT", url, {**VERSION, **public, "content-length": "0"})
    urlopen(Request(url, method="PUT", data=b"", headers={**sent, "Content-Type": ""})).close()


@contextlib.contextmanager
def _running(
    command: Sequence[str], port: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[None]:
    with log.open("wb") as output:
        server = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_until_open(port, server, log)
        yield
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    print(built_fake_gcs(), installed_azurite())
