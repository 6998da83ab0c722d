"""Pack an image folder into WebDataset-style tar shards, with the same bytes on every machine.

OUT/manifest.json                       class names by label; split, sample count, size and hash of each shard
OUT/<split>/<split>-000000.tar          for each key, <key>.jpg and <key>.cls, which holds the label
OUT/<split>/<split>-000000.index.json   offsets of the images in the shard
.OUT.partial/                           being written, or left behind by a killed process
"""

import fcntl
import hashlib
import os
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.pack_dataset.plan import END_OF_TAR, PackPlan, Sample, Shard, padding, read_errors_explained
from kubetrain_trainer.data.shard_index import index_path
from kubetrain_trainer.data.tar_shards import SCHEMA
from kubetrain_trainer.durable_files import CHUNK_BYTES, flush_directory, write_atomically
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.manifest import write_manifest

DATA, COPIES = "data", "copies"
OnSample = Callable[[Sample], None]
Prepare = Callable[[PackPlan, Path], PackPlan]
"""May put copies of the images into the folder, and returns the plan to pack them."""


def write_pack(
    plan: PackPlan, on_sample: OnSample = lambda sample: None, prepare: Prepare = lambda plan, copies: plan
) -> PackPlan:
    """Write the shards and their manifest, then rename the folder to the target once everything is on disk.

    Return the plan of what was written.

    Raises:
        KubetrainError: if an image cannot be read or has changed since the plan, or the target cannot be written;
            nothing is left behind.
    """
    with _disk_errors_explained(plan.out), _new_folder(plan.out) as partial:
        prepared = prepare(plan, partial / COPIES)
        _write_shards(prepared, partial / DATA, on_sample)
    return prepared


def _write_shards(plan: PackPlan, folder: Path, on_sample: OnSample) -> None:
    files = [file for shard in plan.shards for file in _write_shard(folder, plan, shard, on_sample)]
    for split in {shard.split for shard in plan.shards}:
        flush_directory(folder / split)
    classes = [_portable(name) for name in plan.classes]
    write_manifest(folder, {"schema": SCHEMA, "classes": classes, "files": files})


def _portable(name: str) -> str:
    """Decode a file name as UTF-8, regardless of the locale in which it was read."""
    return os.fsencode(name).decode(errors="surrogateescape")


@contextmanager
def _new_folder(path: Path) -> Iterator[Path]:
    """Yield a temporary folder, which is removed. The data in it are renamed to the path if the block succeeds."""
    partial = path.with_name(f".{path.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with (partial / "lock").open("w") as lock:
        _lock(lock.fileno(), path)
        try:
            for name in (DATA, COPIES):
                shutil.rmtree(partial / name, ignore_errors=True)
                (partial / name).mkdir()
            yield partial
            (partial / DATA).rename(path)
            flush_directory(path.parent)
        finally:
            with interrupts_deferred():
                shutil.rmtree(partial, ignore_errors=True)


def _lock(descriptor: int, path: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise KubetrainError(f"{path} is being written by another kubetrain pack: wait for it, or stop it") from None


def _write_shard(folder: Path, plan: PackPlan, shard: Shard, on_sample: OnSample) -> list[dict[str, Any]]:
    """Write a shard and its index durably, and return their manifest entries."""
    path, digest = folder / shard.name, hashlib.sha256()
    path.parent.mkdir(exist_ok=True)
    with path.open("wb", buffering=CHUNK_BYTES) as file:
        for chunk in _tar(plan, shard, on_sample):
            digest.update(chunk)
            file.write(chunk)
        file.flush()
        os.fsync(file.fileno())
    described = {"split": _portable(shard.split), "samples": len(shard.samples)}
    index = shard.index.to_json(shard.size)
    write_atomically(index_path(path), index)
    return [
        {**described, **_entry(shard.name, shard.size, digest)},
        _entry(str(index_path(Path(shard.name))), len(index), hashlib.sha256(index)),
    ]


def _entry(name: str, size: int, digest: "hashlib._Hash") -> dict[str, Any]:
    return {"name": _portable(name), "size": size, "sha256": digest.hexdigest()}


def _tar(plan: PackPlan, shard: Shard, on_sample: OnSample) -> Iterator[bytes]:
    """Yield the archive in chunks; tarfile itself keeps all members in memory and pads to whole tape records."""
    for sample in shard.samples:
        key, label = sample.key, str(sample.label).encode()
        yield _header(f"{key}.{sample.extension}", sample.size)
        yield from _content(plan.file_of(sample), sample.size)
        yield padding(sample.size) + _header(f"{key}.cls", len(label)) + label + padding(len(label))
        on_sample(sample)
    yield END_OF_TAR


def _header(name: str, size: int) -> bytes:
    """Return a tar header without owner or time, so that nothing depends on this machine."""
    member = tarfile.TarInfo(name)
    member.size = size
    member.mode = 0o444
    return member.tobuf(tarfile.USTAR_FORMAT)


def _content(image: Path, size: int) -> Iterator[bytes]:
    remaining = size
    with read_errors_explained(image), image.open("rb", buffering=0) as file:
        while remaining >= 0 and (chunk := file.read(CHUNK_BYTES)):
            remaining -= len(chunk)
            yield chunk
    if remaining != 0:
        raise KubetrainError(f"{image} changed while it was being packed: pack again when nothing writes to it")


@contextmanager
def _disk_errors_explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KubetrainError(
            f"cannot write to {out} ({error.strerror or error}): choose a writable folder with enough space"
        ) from error
