"""The output of a run in a store, and its copy on the disk of a pod. Everything may be repeated, and be interrupted.

<name>                          config.json, metrics.jsonl, …, as on the disk
<folder>/manifest.json          of a checkpoint or the export: written last, if no other start has written another one
<folder>/files/<hash>/<name>    a file that it names, with the beginning of its SHA-256: no other content replaces it
<folder>/parts/<hash>.json      descriptions of files that another pod has put, until the manifest is there
"""

import contextlib
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any

from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.store import (
    ObjectChanged,
    ObjectStore,
    StoredObject,
    StoreError,
    StoreUnavailable,
)
from kubetrain_components.object_store.verified_download import download_verified
from kubetrain_trainer.durable_files import read_json, sha256_of, write_atomically
from kubetrain_trainer.output.checkpoint_layout import PARTIAL
from kubetrain_trainer.output.manifest import MANIFEST, describe_file, intact
from kubetrain_trainer.output.newest_start import START

CHECKPOINTS, EXPORT = "checkpoints", "export"
HASH_DIGITS = 16
MODE = 0o644
File = Mapping[str, Any]
"""Name, size and SHA-256, as manifests have them."""


class KeptRun:
    def __init__(self, store: ObjectStore, root: Path) -> None:
        """
        Args:
            root: The folder of the run.
        """
        self.lock = threading.Lock()
        """Lets one request run at a time: the last one of a start that was killed may still run."""
        self._store, self._root = store, root
        self._seen: dict[Path, tuple[int, int]] = {}
        """Time and size of the small files that the store has."""
        self._verified: dict[Path, tuple[int, int, str]] = {}
        """Time, size and hash of the files that were fetched."""

    def begin(self, _: str) -> None:
        stored = self._stored()
        for key in stored:
            # What has changed here since belongs to a process of this pod that has already begun.
            if _is_small(PurePosixPath(key)) and not (self._root / key in self._seen and self._has_changed(key)):
                self.pull(key)
        for folder in {key.rpartition("/")[0] for key in stored if key.endswith(f"/{MANIFEST}")}:
            manifest, content = self._manifest(folder, stored)
            if manifest and all(_has(stored, folder, file) for file in manifest["files"]):
                self._place(folder, manifest["files"], content)

    def fetch(self, folder: str) -> None:
        stored = self._stored()
        manifest, content = self._manifest(folder, stored)
        if manifest is None:
            return
        self._place(folder, manifest["files"], content)
        for file in manifest["files"]:
            if not self._is_there(path := self._root / folder / file["name"], file) and _has(stored, folder, file):
                self._download(stored[_key(folder, file)], file, path)

    def begin_parts(self, partial: str) -> None:
        self._delete(key for key in self._stored() if key.startswith(f"{_final(partial)}/parts/"))

    def put_part(self, partial: str, names: Sequence[str]) -> None:
        """Move these files of the folder to the store, or all."""
        folder = self._root / partial
        all_names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()]
        files = [describe_file(folder, name) for name in sorted(names or all_names)]
        self._put(partial, files)
        content = json.dumps(files).encode()
        self._store.write(f"{_final(partial)}/parts/{sha256(content).hexdigest()[:HASH_DIGITS]}.json", content)
        for file in files:
            (folder / file["name"]).unlink()

    def parts(self, partial: str) -> dict[str, File]:
        found = self._parts(partial)
        for name, file in found.items():
            _give_size(self._root / partial / name, file["size"])
        return found

    def put(self, partial: str) -> None:
        elsewhere = self._parts(partial)
        manifest = read_json(self._root / partial / MANIFEST)
        self._put(partial, [file for file in manifest["files"] if file != elsewhere.get(file["name"])])

    def commit(self, partial: str) -> None:
        folder, content = _final(partial), (self._root / partial / MANIFEST).read_bytes()
        key, files = f"{folder}/{MANIFEST}", json.loads(content)["files"]
        before, known = self._store.find(key), self._content(key)
        if known != content:
            self._store.write_if(key, content, before.etag if before and known is not None else None)
        self._clean(folder, {key, *(_key(folder, file) for file in files)})
        self._push_changed()

    def remove(self, folder: str) -> None:
        self._store.delete(f"{folder}/{MANIFEST}")
        self._delete(key for key in self._stored() if key.startswith(f"{folder}/"))

    def push(self, name: str) -> None:
        path = self._root / name
        self._seen[path] = _state(path)  # before it changes again
        try:
            self._store.write(name, path.read_bytes())
        except FileNotFoundError:
            self._store.delete(name)

    def push_last(self, _: str, names: Sequence[str]) -> None:
        """Let the store have what has changed, if this start (its id) is still the newest: another one has rows too."""
        if self._content(START) == names[0].encode():
            self._push_changed()

    def _push_changed(self) -> None:
        for path in self._root.rglob("*"):
            name = path.relative_to(self._root)
            if _is_small(PurePosixPath(name)) and self._has_changed(str(name)):
                self.push(str(name))

    def pull(self, name: str) -> None:
        path, content = self._root / name, self._content(name)
        if content is None:
            path.unlink(missing_ok=True)
            return
        if not path.exists() or path.read_bytes() != content:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(path, content)
        self._seen[path] = _state(path)

    def _stored(self) -> dict[str, StoredObject]:
        return {item.key: item for item in self._store.list()}

    def _manifest(self, folder: str, stored: Mapping[str, StoredObject]) -> tuple[File | None, bytes]:
        """Return the manifest of a folder, if it has an intact one."""
        content = self._content(key) if (key := f"{folder}/{MANIFEST}") in stored else None
        with contextlib.suppress(ValueError, KeyError, TypeError):
            return intact(json.loads(content or b"")), content or b""
        return None, b""

    def _content(self, key: str) -> bytes | None:
        """Return what an object has now, which another pod may write or delete at any moment; None if there is none."""
        with contextlib.suppress(ObjectChanged):
            return with_retries(lambda: self._store.read(key).read())
        return None

    def _place(self, folder: str, files: Iterable[File], manifest: bytes) -> None:
        for file in files:
            _give_size(self._root / folder / file["name"], file["size"])
        (self._root / folder).mkdir(parents=True, exist_ok=True)
        write_atomically(self._root / folder / MANIFEST, manifest)

    def _is_there(self, path: Path, file: File) -> bool:
        status = path.stat()
        known = (status.st_mtime_ns, status.st_size, file["sha256"])
        if self._verified.get(path) != known and sha256_of(path) == file["sha256"]:
            self._verified[path] = known
        return self._verified.get(path) == known

    def _download(self, item: StoredObject, file: File, path: Path) -> None:
        try:
            download_verified(self._store, item, file["sha256"], path, MODE)
        except StoreUnavailable:
            raise
        except StoreError as error:  # the training takes an older checkpoint
            print(f"skipping {item.key}: {error}", flush=True)

    def _parts(self, partial: str) -> dict[str, File]:
        keys = [key for key in self._stored() if key.startswith(f"{_final(partial)}/parts/")]
        return {file["name"]: file for key in keys for file in json.loads(self._store.read(key).read())}

    def _put(self, partial: str, files: Iterable[File]) -> None:
        for file in files:
            found = self._store.find(key := _key(_final(partial), file))
            if found is None or found.size != file["size"]:
                self._store.write(key, self._root / partial / file["name"])

    def _clean(self, folder: str, kept: set[str]) -> None:
        """Delete what the manifest does not name, and what killed starts have put for earlier checkpoints."""
        stored = self._stored()
        others = {
            key.partition("/files/")[0] for key in stored if key.startswith(f"{CHECKPOINTS}/") and "/files/" in key
        }
        left = {each for each in others if each < folder and f"{each}/{MANIFEST}" not in stored} | {folder}
        self._delete(key for key in stored if key not in kept and any(key.startswith(f"{each}/") for each in left))

    def _delete(self, keys: Iterable[str]) -> None:
        for key in list(keys):
            self._store.delete(key)

    def _has_changed(self, name: str) -> bool:
        """Return whether the file has changed since it was pushed or pulled."""
        return self._seen.get(self._root / name) != _state(self._root / name)


def _is_small(name: PurePosixPath) -> bool:
    """Return whether this is a file beside checkpoints and export, and no mark."""
    is_beside = name.parts[0] not in (CHECKPOINTS, EXPORT) and bool(name.suffix)
    return is_beside and not any(part.startswith(".") for part in name.parts)


def _state(path: Path) -> tuple[int, int]:
    with contextlib.suppress(FileNotFoundError):
        status = path.stat()
        return status.st_mtime_ns, status.st_size
    return 0, 0


def _final(partial: str) -> str:
    """Return the name that a folder gets when it is complete."""
    path = PurePosixPath(partial)
    return str(path.with_name(path.name.removeprefix(".").removesuffix(PARTIAL)))


def _key(folder: str, file: File) -> str:
    return f"{folder}/files/{file['sha256'][:HASH_DIGITS]}/{file['name']}"


def _has(stored: Mapping[str, StoredObject], folder: str, file: File) -> bool:
    found = stored.get(_key(folder, file))
    return found is not None and found.size == file["size"]


def _give_size(path: Path, size: int) -> None:
    """Let there be a file of this size, if only a hole, for a manifest to be complete on the disk."""
    if not path.is_file() or path.stat().st_size != size:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(size)
