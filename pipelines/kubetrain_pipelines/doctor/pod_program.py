"""What the doctor's pods run, sent to them as text: it needs no more than Python, and for S3 our components.

Each try reports a sentence under its name, of what was seen or after "error: ". The last words are what comes back.
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

SECONDS = 40.0
"""For each try: a store that nobody answers for must not hold up the others."""
MARK = "kubetrain-doctor"


def write(*folders: str) -> str:
    for folder in folders:
        with Path(folder, MARK).open("w") as file:
            file.write(MARK)
            file.flush()
            os.fsync(file.fileno())
    return f"user {os.getuid()} writes to a fresh claim like each that the run makes"


def read_only(folder: str, has_mark: str) -> str:
    if has_mark and Path(folder, MARK).read_text() != MARK:
        raise RuntimeError("a pod does not see what another wrote")
    try:
        Path(folder, "more").write_text("x")
    except OSError as error:
        if error.errno != errno.EROFS:
            raise
        return f"{'a pod sees what another wrote' if has_mark else 'a pod mounts it'}, and cannot write there (EROFS)"
    raise RuntimeError("a pod can write through a mount that is read-only")


def dataset(uri: str, endpoint: str, access: str) -> str:
    from kubetrain_components.object_store.open_store import open_store
    from kubetrain_components.object_store.store import Access

    first = next(iter(open_store(uri, endpoint, Access(access)).list()), None)
    if first is None:
        raise RuntimeError(f"there are no objects under {uri}")
    return f"{uri} can be listed from a pod: {first.key}, …"


def model(uri: str, endpoint: str) -> str:
    from kubetrain_components.object_store.open_store import open_store

    key = f".{MARK}-{secrets.token_hex(4)}"
    store = open_store(uri, endpoint)
    store.write(key, MARK.encode())
    store.delete(key)
    return f"{uri} can be written from a pod"


TRIES: dict[str, Callable[..., str]] = {"write": write, "read_only": read_only, "dataset": dataset, "model": model}


def report(name: str, arguments: list[str], seen: dict[str, str]) -> None:
    try:
        seen[name] = TRIES[name](*arguments)
    except Exception as error:  # noqa: BLE001 - whatever it is, somebody wants to know
        seen[name] = f"error: {error}"


def main(asked: dict[str, list[str]]) -> None:
    seen: dict[str, str] = {}
    for name, arguments in asked.items():
        thread = threading.Thread(target=report, args=(name, arguments, seen), daemon=True)
        thread.start()
        thread.join(SECONDS)
        seen.setdefault(name, f"error: no answer in {SECONDS:.0f} s")
    words: dict[str, Any] = {"status": "completed", "seen": {name: text[:900] for name, text in seen.items()}}
    Path("/dev/termination-log").write_text(json.dumps(words))
    os._exit(0)  # whatever hangs still


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
