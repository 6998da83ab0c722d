"""Pack a folder of code into an archive that its digest names, the same for the same files."""

import fnmatch
import gzip
import hashlib
import io
import os
import subprocess
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from kubetrain_components import WORKSPACE
from kubetrain_components.object_store.store import ObjectStore
from kubetrain_components.run.published_model import write_commit
from kubetrain_trainer.errors import InvalidSetting

IGNORE_FILE = ".kubetrainignore"
ALWAYS_IGNORED = (
    *(".git", ".venv", "__pycache__", "*.pyc", "*.env", ".env.*"),
    *("*.pem", "*.key", "*.p12", "*.pfx", "*kubeconfig*", "*.jks", "*.keystore", "*.kdbx", "*.ppk", "*.tfvars"),
    *("*.tfstate*", "client_secret*.json", "*accesskeys*.csv", "rootkey.csv", "kaggle.json"),
    *("id_rsa*", "id_ecdsa*", "id_ed25519*", "*service*account*.json"),
    *(".aws", ".docker", ".kaggle", ".kube", ".ssh", ".git-credentials", ".netrc", ".npmrc", ".pypirc"),
)
"""Never packed, in upper or lower case: what Python and git make, and what is usually secret."""
IGNORED_OUTSIDE_GIT = (
    *(".*", "venv", "node_modules", WORKSPACE),
    *("credentials", "credentials.*", "secrets", "secrets.*", "*-key.json", "token.txt", "password*.txt", "hf_token"),
)
"""Not packed, unless git tracks it: settings and caches of tools, installed packages, what may be secret, and runs."""
MAX_BYTES = 50 << 20
MAX_ARCHIVE_BYTES = 2 * MAX_BYTES
"""Limit of the archive before its compression: it has up to a KiB more for each file, and nothing else limits their
number."""


@dataclass(frozen=True)
class PackedCode:
    digest: str
    content: bytes
    files: tuple[str, ...]
    commit: str = ""
    """The git commit that is checked out, with -dirty if files differ from it; empty outside of a repository."""

    def python_files(self) -> dict[str, str]:
        """Return the text of each Python file by its name."""
        with tarfile.open(fileobj=io.BytesIO(self.content)) as archive:
            read = {name: archive.extractfile(name) for name in self.files if name.endswith(".py")}
            return {name: file.read().decode(errors="replace") for name, file in read.items() if file}


def pack_code(folder: Path, without: Path | None = None) -> PackedCode:
    """
    Args:
        without: A folder in it to leave out, such as that of the run's own files.

    Raises:
        InvalidSetting: if the folder has no files, or too many.
    """
    names = sorted(files_of(folder, without))
    size = sum((folder / name).stat().st_size for name in names)
    if not names:
        tracked = " that git tracks: add them by `git add`, or" if _is_in_repository(folder) else " to bring:"
        raise InvalidSetting(f"--code {folder} has no files{tracked} name the folder with your code")
    if size > MAX_BYTES:
        raise InvalidSetting(
            f"--code {folder} has {size / 2**20:.0f} MiB in {len(names)} files, more than {MAX_BYTES >> 20} MiB: "
            f"list what the training does not need in {IGNORE_FILE}"
        )
    archive = _archive(folder, names)
    if len(archive) > MAX_ARCHIVE_BYTES:
        raise InvalidSetting(
            f"--code {folder} has {len(names)} files, too many for an archive of {MAX_ARCHIVE_BYTES >> 20} MiB: "
            f"list what the training does not need in {IGNORE_FILE}"
        )
    return PackedCode(digest_of(archive), gzip.compress(archive, mtime=0), tuple(names), _commit(folder))


def with_script(code: PackedCode | None, name: str, text: str) -> PackedCode:
    """Return the code, if there is any, and one file more."""
    packed, entry = io.BytesIO(gzip.decompress(code.content) if code else b""), tarfile.TarInfo(name)
    content = text.encode()
    entry.size = len(content)
    with tarfile.open(fileobj=packed, mode="a" if code else "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(entry, io.BytesIO(content))
    whole, files = packed.getvalue(), code.files if code else ()
    return PackedCode(digest_of(whole), gzip.compress(whole, mtime=0), (*files, name), code.commit if code else "")


def digest_of(archive: bytes) -> str:
    """Return the digest of the archive before its compression, which may differ between versions of zlib."""
    return hashlib.sha256(archive).hexdigest()[:32]


def files_of(folder: Path, without: Path | None = None) -> Iterator[str]:
    """Yield the files that git tracks, or else all files, except for secrets and those that .kubetrainignore lists."""
    if not folder.is_dir():
        raise InvalidSetting(f"--code {folder} is not a folder")
    root, own = folder.resolve(), without.resolve() if without else None
    if own in (root, *root.parents):
        raise InvalidSetting(f"--code {folder} is in {own}, the folder of the run's own files: choose another for them")
    is_tracked, own_patterns = _is_in_repository(folder), _patterns(folder / IGNORE_FILE)
    usual_patterns = ALWAYS_IGNORED if is_tracked else (*ALWAYS_IGNORED, *IGNORED_OUTSIDE_GIT)
    for name in _tracked(folder) if is_tracked else _all(folder):
        path = folder / name
        is_ignored = _is_ignored(name, own_patterns) or _is_ignored(name.lower(), usual_patterns)
        if own not in (root / name).parents and not is_ignored and path.is_file() and not path.is_symlink():
            yield name


def _is_ignored(name: str, patterns: Sequence[str]) -> bool:
    """Compare each part of the path, and each folder that it lies in, with the patterns."""
    path = Path(name)
    named = (*path.parts, name, *(parent.as_posix() for parent in path.parents[:-1]))
    return any(fnmatch.fnmatch(item, pattern) for item in named for pattern in patterns)


def _is_in_repository(folder: Path) -> bool:
    here = folder.resolve()
    return any((parent / ".git").exists() for parent in (here, *here.parents))


def _tracked(folder: Path) -> list[str]:
    """Return the files that git tracks under the folder, also in submodules.

    Raises:
        InvalidSetting: if git cannot tell: all files could have secrets among them.
    """
    try:
        listed = _git(folder, "ls-files", "-z", "--recurse-submodules")
    except (OSError, subprocess.CalledProcessError) as error:
        reason = getattr(error, "stderr", b"").decode(errors="replace") or error
        raise InvalidSetting(f"--code {folder} is in a repository whose files git does not list: {reason}") from error
    return [os.fsdecode(name) for name in listed.split(b"\0") if name]


def _git(folder: Path, *arguments: str, check: bool = True) -> bytes:
    return subprocess.run(["git", "-C", str(folder), *arguments], capture_output=True, check=check).stdout


def _all(folder: Path) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in folder.rglob("*")]


def _commit(folder: Path) -> str:
    if not _is_in_repository(folder):
        return ""
    described = _git(folder, "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*", check=False)
    return described.decode().strip()


def _patterns(file: Path) -> list[str]:
    """
    Raises:
        InvalidSetting: if the file cannot be read: what it lists could be secret.
    """
    try:
        lines = file.read_text(encoding="utf-8-sig").splitlines() if file.is_file() else []
    except UnicodeDecodeError as error:
        raise InvalidSetting(f"{file} is not UTF-8 text: save it as UTF-8") from error
    return [line.strip().strip("/") for line in lines if line.strip() and not line.startswith("#")]


def _archive(folder: Path, names: list[str]) -> bytes:
    """Return an archive without times and owners, so that the same files have the same digest."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name in names:
            content = (folder / name).read_bytes()
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), 0o755 if os.access(folder / name, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(content))
    return packed.getvalue()


def upload_code(code: PackedCode, store: ObjectStore) -> None:
    store.write(archive_key(code.digest), code.content)
    write_commit(store, code.digest, code.commit)


def archive_key(digest: str) -> str:
    return f".code/{digest}.tar.gz"
