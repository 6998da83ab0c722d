"""File systems that cannot link, share blocks or ignore case, mounted from image files if the user is root."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from kubetrain_components.object_store.directory_store import DirectoryStore
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
