"""File systems that cannot link, share blocks or ignore case, mounted from image files if the user is root."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from support.cli import kubetrain

pytestmark = pytest.mark.slow
MEGABYTE = 1_000_000


@contextmanager
def volume(folder: Path, make: Sequence[str], mount: Sequence[str]) -> Iterator[Path]:
    image, point = folder / "image", folder / "mounted"
    point.mkdir()
    with image.open("wb") as file:
        file.truncate(400 * MEGABYTE)
    for command in ([*make, str(image)], [*mount, str(image), str(point)]):
        if not shutil.which(command[0]) or subprocess.run(command, check=False).returncode:
            pytest.skip(f"{command[0]} cannot be used here")
    try:
        yield point
    finally:
        subprocess.run(["umount", str(point)], check=True)


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

    def no_links(*_: object, **__: object) -> None:
        raise PermissionError(errno.EPERM, "as for another owner's file")

    monkeypatch.setattr(os, "link", no_links)
    with volume(tmp_path, ["mkfs.xfs", "-q"], ["mount", "-o", "loop"]) as point:
        transfer_dataset(DirectoryStore(source), point)
        before = used_bytes(point)
        (source / "c").write_bytes(b"changed")
        report = transfer_dataset(DirectoryStore(source), point)
        assert (report.cloned, report.copied, report.linked, report.downloaded) == (2, 0, 0, 1)
        assert used_bytes(point) - before < MEGABYTE
        assert kubetrain("verify", point).exit_code == 0


def test_keys_that_differ_only_by_case_are_refused_if_the_volume_ignores_case(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (source / "A.txt").write_bytes(b"1")
    (source / "a.txt").write_bytes(b"2")
    with volume(tmp_path, ["mkntfs", "-q", "-F"], ["lowntfs-3g", "-o", "ignore_case"]) as point:
        refused = kubetrain("sync", source, point)
        assert refused.exit_code == 1
        assert "'A.txt' and 'a.txt'" in refused.output
        assert "are one file on this volume" in refused.output
        (source / "A.txt").unlink()
        assert kubetrain("sync", source, point).exit_code == 0
        assert kubetrain("verify", point).exit_code == 0
