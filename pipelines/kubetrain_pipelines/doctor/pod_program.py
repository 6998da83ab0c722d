"""The program of the doctor's pods, passed to them as text. It needs only Python, and our components for S3.

Each test reports one sentence: what it saw, or an error after "error: ". The report is returned in the termination log.
"""

import errno
import json
import os
import secrets
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

TIMEOUT_SECONDS = 40.0
"""The timeout of each test, so that one that hangs does not block the others."""
MARK = "kubetrain-doctor"


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


def dataset(uri: str, endpoint: str, access: str) -> str:
    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.object_store.store import Access

    first = next(iter(open_store(uri, endpoint, Access(access)).list()), None)
    if first is None:
        raise RuntimeError(f"{uri} contains no objects")
    return f"a pod can list {uri}: {first.key}, …"


def model(uri: str, endpoint: str) -> str:
    from kubetrain_components.object_store.open_store import open_store

    key = f".{MARK}-{secrets.token_hex(4)}"
    store = open_store(uri, endpoint)
    store.write(key, MARK.encode())
    store.delete(key)
    return f"a pod can write to {uri}"


TESTS: dict[str, Callable[..., str]] = {"write": write, "read_only": read_only, "dataset": dataset, "model": model}


def report(name: str, arguments: list[str], seen: dict[str, str]) -> None:
    try:
        seen[name] = TESTS[name](*arguments)
    except Exception as error:  # noqa: BLE001 - every error is reported
        seen[name] = f"error: {error}"


def main(tests: dict[str, list[str]]) -> None:
    seen: dict[str, str] = {}
    for name, arguments in tests.items():
        thread = threading.Thread(target=report, args=(name, arguments, seen), daemon=True)
        thread.start()
        thread.join(TIMEOUT_SECONDS)
        seen.setdefault(name, f"error: no answer within {TIMEOUT_SECONDS:.0f} s")
    result: dict[str, Any] = {"status": "completed", "seen": {name: text[:900] for name, text in seen.items()}}
    Path("/dev/termination-log").write_text(json.dumps(result))
    os._exit(0)  # without waiting for threads that hang


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
