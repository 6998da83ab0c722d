"""The program of the doctor's pods, passed to them as text. It needs only Python, and our components for S3.

Each test reports one sentence: what it saw, or one that begins with WARNING or ERROR. The report is returned in the
termination log.
"""

import errno
import json
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 40.0
"""The timeout of each test, so that one that hangs does not block the others."""
ETCD_SECONDS = 10.0
COUNTING_SECONDS = 20.0
"""Time after which the objects of a dataset are not counted further."""
MARK = "kubetrain-doctor"
WARNING = "warning: "
ERROR = "error: "
CA_OF_STEPS = Path("/kfp/certs/ca.crt")
"""Kubeflow Pipelines mounts its configured CA here."""
SYSTEM_CAS = Path("/etc/ssl/certs/ca-certificates.crt")


def write(*folders: str) -> str:
    for folder in folders:
        with Path(folder, MARK).open("w") as file:
            file.write(MARK)
            file.flush()
            os.fsync(file.fileno())
    return f"user {os.getuid()} can write to new PVCs like those of the run"


def read_only(folder: str, has_mark: str) -> str:
    if has_mark and Path(folder, MARK).read_text() != MARK:
        raise RuntimeError("a pod cannot see the file that another pod wrote")
    try:
        Path(folder, "more").write_text("x")
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        seen = "a pod can see the file that another pod wrote" if has_mark else "a pod can mount it"
        return f"{seen}, and cannot write (EROFS)"
    raise RuntimeError("a pod can write to a read-only mount")


def dataset(uri: str, endpoint: str, access: str, data: str) -> str:
    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.object_store.store import Access

    store = open_store(uri, endpoint, Access(access))
    objects = store.list()
    first = next(objects, None)
    if first is None:
        raise RuntimeError(f"{uri} contains no objects")
    # Listing and reading are separate permissions. An empty object, such as that of a folder, has no byte to read.
    some = first if first.size else next((item for item in objects if item.size), first)
    store.read(some.key, some.etag, 0, 1 if some.size else None).read()
    if data == "image_folder" and are_too_many(objects):
        return f"{WARNING}{uri} has so many objects that listing their names takes memory in every loading process"
    return f"a pod can list {uri} and read {some.key}"


def are_too_many(objects: Iterator[Any]) -> bool:
    """Return True if there are more than an image folder should have, as far as they can be counted in time."""
    from kubetrain_trainer.data.image_folder import MAX_FILES

    found = threading.Event()

    def count() -> None:
        if next(islice(objects, MAX_FILES - 1, None), None):  # one was read before
            found.set()

    counting = threading.Thread(target=count, daemon=True)
    counting.start()
    counting.join(COUNTING_SECONDS)
    return found.is_set()


def model(uri: str, endpoint: str) -> str:
    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.object_store.probe_writes import probe_writes

    lack = probe_writes(open_store(uri, endpoint))
    return f"{WARNING}{lack}" if lack else f"a pod can write to {uri}, also on a condition"


def output(uri: str, endpoint: str) -> str:
    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.object_store.probe_writes import probe_writes

    store = open_store(uri, endpoint)
    if lack := probe_writes(store):  # a training deletes checkpoints, and must not replace those of a later start
        raise RuntimeError(lack)
    next(store.list(), None)
    return f"a pod can write to {uri}, also on a condition, and read, list and delete there"


def etcd(endpoint: str, conf: str) -> str:
    from kubetrain_trainer.pytorch_ddp.launching.etcd_server import await_etcd

    await_etcd(endpoint, conf, ETCD_SECONDS, say=lambda sentence: None)
    return f"a pod reaches etcd at {endpoint}, which serves the API v2"


TESTS: dict[str, Callable[..., str]] = {
    "write": write,
    "read_only": read_only,
    "dataset": dataset,
    "model": model,
    "output": output,
    "etcd": etcd,
}


def report(name: str, arguments: list[str], seen: dict[str, str]) -> None:
    try:
        seen[name] = TESTS[name](*arguments)
    except Exception as error:  # noqa: BLE001 - every error is reported
        seen[name] = f"{ERROR}{error}"


def trust_ca_of_steps() -> None:
    """Trust the same CAs as a step of Kubeflow Pipelines: those of the system, and the one it is configured with."""
    if CA_OF_STEPS.is_file():
        with tempfile.NamedTemporaryFile("wb", delete=False) as bundle:
            for path in (SYSTEM_CAS, CA_OF_STEPS):
                bundle.write(path.read_bytes() if path.is_file() else b"")
        for name in ("AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE"):
            os.environ[name] = bundle.name


def main(tests: dict[str, list[str]]) -> None:
    trust_ca_of_steps()
    seen: dict[str, str] = {}
    for name, arguments in tests.items():
        thread = threading.Thread(target=report, args=(name, arguments, seen), daemon=True)
        thread.start()
        thread.join(TIMEOUT_SECONDS)
        seen.setdefault(name, f"{ERROR}no answer within {TIMEOUT_SECONDS:.0f} s")
    result: dict[str, Any] = {"status": "completed", "seen": {name: text[:900] for name, text in seen.items()}}
    Path("/dev/termination-log").write_text(json.dumps(result))
    os._exit(0)  # without waiting for threads that hang


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
