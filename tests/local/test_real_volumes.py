"""File systems that cannot link, share blocks or ignore case, mounted from image files if the user is root."""

import errno
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.object_store.store import ObjectContent
from kubetrain_components.sync_dataset import fetch
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_trainer.errors import KubetrainError
from support.cli import kubetrain

pytestmark = pytest.mark.slow
MEGABYTE = 1_000_000


@contextmanager
def volume(folder: Path, make: Sequence[str], mount: Sequence[str]) -> Iterator[Path]:
    image, point = folder / "image", folder / "mounted"
    point.mkdir(parents=True)
    with image.open("wb") as file:
        file.truncate(400 * MEGABYTE)
    for command in ([*make, str(image)], [*mount, str(image), str(point)]):
        if not shutil.which(command[0]) or subprocess.run(command, check=False).returncode:
            pytest.skip(f"{command[0]} cannot be used here")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


def no_links(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, "as for another owner's file")


def used_bytes(point: Path) -> int:
    os.sync()
    facts = os.statvfs(point)
    return (facts.f_blocks - facts.f_bfree) * facts.f_frsize


def test_files_that_cannot_be_linked_share_blocks_if_the_volume_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in "abc":
        (source / name).write_bytes(os.urandom(5 * MEGABYTE))

    monkeypatch.setattr(os, "link", no_links)
    with volume(tmp_path, ["mkfs.xfs", "-q"], ["mount", "-o", "loop"]) as point:
        transfer_dataset(DirectoryStore(source), point)
        before = used_bytes(point)
        (source / "c").write_bytes(b"changed")
        report = transfer_dataset(DirectoryStore(source), point)
        assert (report.cloned, report.copied, report.linked, report.downloaded) == (2, 0, 0, 1)
        assert used_bytes(point) - before < MEGABYTE
        assert kubetrain("verify", point).exit_code == 0


def ntfs(folder: Path) -> AbstractContextManager[Path]:
    return volume(folder, ["mkntfs", "-q", "-F"], ["lowntfs-3g", "-o", "ignore_case"])


@pytest.mark.parametrize(
    ("keys", "named"), [(("A.txt", "a.txt"), ("A.txt", "a.txt")), (("train/Cat/1", "train/cat/2"), ("Cat", "cat"))]
)
def test_names_that_differ_only_by_case_are_refused_if_the_volume_ignores_case(
    tmp_path: Path, keys: tuple[str, str], named: tuple[str, str]
) -> None:
    source = tmp_path / "source"
    for key in keys:
        (source / key).parent.mkdir(parents=True, exist_ok=True)
        (source / key).write_bytes(b"1")
    with ntfs(tmp_path) as point:
        refused = kubetrain("sync", source, point)
        assert refused.exit_code == 1
        assert f"{named[0]}' and " in refused.output
        assert f"{named[1]}' under " in refused.output
        assert "on this volume" in refused.output
        (source / keys[0]).unlink()
        assert kubetrain("sync", source, point).exit_code == 0
        assert kubetrain("verify", point).exit_code == 0


def test_names_that_only_some_volumes_take_for_one_are_files_on_the_others(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("straße", "strasse"):
        (source / name).write_text(name)
    with ntfs(tmp_path) as point:
        assert kubetrain("sync", source, point).exit_code == 0
        (data,) = point.glob("versions/*/data")
        assert [(data / name).read_text() for name in ("straße", "strasse")] == ["straße", "strasse"]
    with volume(tmp_path / "ext4", ["mkfs.ext4", "-q", "-O", "casefold"], ["mount", "-o", "loop"]) as point:
        (point / "staging").mkdir()
        if subprocess.run(["chattr", "+F", str(point / "staging")], check=False).returncode:
            pytest.skip("this kernel's ext4 cannot ignore case")
        refused = kubetrain("sync", source, point / "staging")
        assert "on this volume" in refused.output


@pytest.fixture
def lossy(tmp_path: Path) -> Iterator[tuple[Path, Callable[[str], object]]]:
    """An ext4 volume on storage of 20 MB, on which writes are lost, and a function that resizes that storage."""
    ext4 = ["mkfs.ext4", "-q", "-F", "-N", "999", "-O", "^has_journal", "-E", "nodiscard"]
    with (
        volume(tmp_path / "storage", ["true"], ["mount", "-t", "tmpfs", "-o", "size=20M"]) as storage,
        volume(storage / "volume", ext4, ["mount", "-o", "loop"]) as point,
    ):
        yield point, lambda size: subprocess.run(["mount", "-o", f"remount,size={size}", str(storage)], check=True)


def read_from_disk(folder: Path) -> None:
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def random_files(source: Path, files: int, size: int) -> Path:
    source.mkdir()
    for number in range(files):
        (source / f"{number:02}").write_bytes(os.urandom(size))
    return source


def test_nothing_is_believed_of_a_sync_whose_flush_failed(
    tmp_path: Path, lossy: tuple[Path, Callable[[str], object]]
) -> None:
    (point, resize), source = lossy, random_files(tmp_path / "source", 30, MEGABYTE)
    with pytest.raises(KubetrainError, match="Input/output error"):
        transfer_dataset(DirectoryStore(source), point)
    assert not [*point.glob("versions/.*.partial")]
    resize("200M")
    assert transfer_dataset(DirectoryStore(source), point).downloaded == 30
    read_from_disk(point)
    assert kubetrain("verify", point).exit_code == 0


@pytest.mark.parametrize(("files", "size"), [(30, MEGABYTE), (1, 30 * MEGABYTE)])
def test_a_resumed_sync_reads_from_disk_what_an_interrupted_one_wrote(
    tmp_path: Path,
    lossy: tuple[Path, Callable[[str], object]],
    monkeypatch: pytest.MonkeyPatch,
    files: int,
    size: int,
) -> None:
    class Interrupted(DirectoryStore):
        def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
            if key == "29" or start == 29 * MEGABYTE:
                raise KeyboardInterrupt
            return super().read(key, etag, start, end)

    monkeypatch.setattr(fetch, "PART_BYTES", MEGABYTE)
    monkeypatch.setattr(fetch, "LARGE_BYTES", 2 * MEGABYTE)
    (point, resize), source = lossy, random_files(tmp_path / "source", files, size)
    with pytest.raises(KeyboardInterrupt):
        transfer_dataset(Interrupted(source), point, concurrency=1)
    subprocess.run(["sync", "--file-system", str(point)], check=False)  # this program is told of the lost writes
    resize("200M")
    transfer_dataset(DirectoryStore(source), point)
    read_from_disk(point)
    assert kubetrain("verify", point).exit_code == 0


def test_a_full_volume_that_cannot_link_does_not_cut_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in "abc":
        (source / name).write_bytes(os.urandom(5 * MEGABYTE))
    monkeypatch.setattr(os, "link", no_links)
    with volume(tmp_path, ["true"], ["mount", "-t", "tmpfs", "-o", "size=22M"]) as point:
        transfer_dataset(DirectoryStore(source), point)
        (source / "c").write_bytes(b"changed")
        with pytest.raises(KubetrainError, match=r"bytes free, but|No space left"):
            transfer_dataset(DirectoryStore(source), point)
        subprocess.run(["mount", "-o", "remount,size=60M", str(point)], check=True)
        report = transfer_dataset(DirectoryStore(source), point)
        assert report.copied + report.resumed == 2
        assert kubetrain("verify", point).exit_code == 0
