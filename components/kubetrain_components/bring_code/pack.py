"""Pack a folder of code into an archive that its digest names, the same for the same files."""

import fnmatch
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from kubetrain_components.object_store.store import ObjectStore
from kubetrain_trainer.errors import InvalidSetting

IGNORE_FILE = ".kubetrainignore"
ALWAYS_IGNORED = (".git", ".venv", "__pycache__", "*.pyc")
MAX_BYTES = 50 << 20


@dataclass(frozen=True)
class PackedCode:
    digest: str
    content: bytes
    files: int


def pack_code(folder: Path) -> PackedCode:
    """
    Raises:
        InvalidSetting: if the folder has no files, or too many.
    """
    names = sorted(files_of(folder))
    size = sum((folder / name).stat().st_size for name in names)
    if not names:
        raise InvalidSetting(f"--code {folder} has no files to bring: name the folder with your code")
    if size > MAX_BYTES:
        raise InvalidSetting(
            f"--code {folder} has {size / 2**20:.0f} MiB in {len(names)} files, more than {MAX_BYTES >> 20} MiB: "
            f"list what the training does not need in {IGNORE_FILE}"
        )
    content = _archive(folder, names)
    return PackedCode(hashlib.sha256(content).hexdigest()[:32], content, len(names))


def files_of(folder: Path) -> Iterator[str]:
    """Yield the files that git tracks, or else all files, except for those that .kubetrainignore lists."""
    if not folder.is_dir():
        raise InvalidSetting(f"--code {folder} is not a folder")
    ignored = (*ALWAYS_IGNORED, *_patterns(folder / IGNORE_FILE))
    for name in _tracked(folder) or _all(folder):
        parts = Path(name).parts
        is_ignored = any(fnmatch.fnmatch(part, pattern) for part in (*parts, name) for pattern in ignored)
        if not is_ignored and (folder / name).is_file() and not (folder / name).is_symlink():
            yield name


def _tracked(folder: Path) -> list[str]:
    """Return the files that git tracks under the folder; none if it is not in a repository."""
    command = ["git", "-C", str(folder), "ls-files", "-z"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return []
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _all(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*")]


def _patterns(file: Path) -> list[str]:
    lines = file.read_text().splitlines() if file.is_file() else []
    return [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]


def _archive(folder: Path, names: list[str]) -> bytes:
    """Return an archive without times and owners, so that the same files have the same digest."""
    packed = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name in names:
            content = (folder / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if os.access(folder / name, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def upload_code(code: PackedCode, store: ObjectStore) -> None:
    """Write the archive, unless the store has it: its name is its content."""
    if store.find(key := archive_key(code.digest)) is None:
        store.write(key, code.content)


def archive_key(digest: str) -> str:
    return f".code/{digest}.tar.gz"
