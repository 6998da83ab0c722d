"""Manifests: which files a checkpoint or a model has, with their hashes, and a hash of the manifest itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kubetrain_trainer.durable_files import finite, flush_directory, flush_file, read_json, sha256_of, write_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output import output_store

MANIFEST = "manifest.json"
PUBLISHED_DESCRIPTION = "model.json"
"""The file beside a published model that describes it."""


class CorruptFiles(KubetrainError):
    """Files are missing or differ from their manifest."""


def describe_files(directory: Path) -> list[dict[str, Any]]:
    """Flush each file to disk, in subfolders too, and return its path in the directory, its size and its hash.

    Raises:
        KubetrainError: for a link, or a file with the name of the manifest.
    """
    described, elsewhere = [], output_store.parts(directory)
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if path.is_symlink() or name == MANIFEST:
            reason = "is a link" if path.is_symlink() else "has a name that kubetrain uses"
            raise KubetrainError(f"{path} {reason}: write a file with another name")
        path.chmod(0o755 if path.is_dir() else 0o644)  # later steps read it as other users
        if path.is_dir():
            flush_directory(path)
        elif name in elsewhere:
            described.append(elsewhere[name])
        else:
            flush_file(path)
            described.append(describe_file(directory, name))
    return described


def describe_file(directory: Path, name: str) -> dict[str, Any]:
    return {"name": name, "size": (directory / name).stat().st_size, "sha256": sha256_of(directory / name)}


def describe_export(folder: Path) -> list[dict[str, Any]]:
    """Return the files of a model, for its manifest.

    Raises:
        KubetrainError: if there is none, or one that cannot be published.
    """
    files = describe_files(folder)
    if not files:
        raise KubetrainError(
            f"there is no model in {folder}: write it to the folder export of $KUBETRAIN_OUTPUT, or with "
            "session.finish() into the folder that it passes"
        )
    if (folder / PUBLISHED_DESCRIPTION).exists():
        raise KubetrainError(f"{folder / PUBLISHED_DESCRIPTION} has a name that kubetrain uses: write another one")
    return files


def write_manifest(folder: Path, manifest: Mapping[str, Any]) -> None:
    write_json(folder / MANIFEST, {**manifest, "sha256": _hash_of(manifest)})


def read_manifest(folder: Path) -> dict[str, Any]:
    return intact(read_json(folder / MANIFEST))


def intact(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest without the hash of its own.

    Raises:
        ValueError: if it has another content than its writer gave it.
    """
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    if manifest["sha256"] != _hash_of(content):
        raise ValueError("its content differs from its hash")
    return content


def _hash_of(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(finite(manifest), sort_keys=True).encode()).hexdigest()


def verify_files(directory: Path, described: list[dict[str, Any]]) -> None:
    """Compare every file with the hash in its manifest.

    Raises:
        CorruptFiles: if a file is missing or differs.
    """
    output_store.fetch(directory)
    wrong = [file["name"] for file in described if not _is_intact(directory / file["name"], file)]
    if wrong:
        raise CorruptFiles(
            f"{directory} is corrupt (missing or different from the manifest: {', '.join(wrong)}); "
            "delete this directory so that an intact one is used"
        )


def _is_intact(path: Path, described: Mapping[str, Any]) -> bool:
    if not path.is_file() or path.stat().st_size != described["size"]:
        return False
    return bool(sha256_of(path) == described["sha256"])
