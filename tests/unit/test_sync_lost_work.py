"""What a sync keeps of earlier work, and what it does about files that were lost, cut short or changed."""

import errno
import hashlib
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access, ObjectContent, ObjectStore, StoredObject
from kubetrain_components.sync_dataset import fetch, leftovers, locks, resume
from kubetrain_components.sync_dataset.large_object import LargeObject
from kubetrain_components.sync_dataset.locks import delete_lock, version_locked
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.progress import SyncProgress
from kubetrain_components.sync_dataset.publish import DatasetVersion, published_versions
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.transfer import preview_sync, transfer_dataset
from kubetrain_pipelines.cli.verify import verify_folder
from kubetrain_trainer.errors import KubetrainError
from support.faulty_s3 import FaultyS3, replaced
from support.interrupt_at import interrupt_at, uses_locks_of_futures


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging"


def make_source(folder: Path, files: int = 4) -> Path:
    folder.mkdir()
    for number in range(files):
        (folder / f"{folder.name}-{number}").write_bytes(os.urandom(3000))
    return folder


def sync(source: Path, staging: Path) -> SyncReport:
    return transfer_dataset(DirectoryStore(source), staging)


def interrupt(source: Path, staging: Path, key: str) -> None:
    class Interrupted(DirectoryStore):
        def read(self, wanted: str, *rest: Any) -> ObjectContent:
            if wanted == key:
                raise KeyboardInterrupt
            return super().read(wanted, *rest)

    with pytest.raises(KeyboardInterrupt):
        transfer_dataset(Interrupted(source), staging, concurrency=1)


def assert_intact(staging: Path) -> None:
    assert [problem for each in verify_folder(staging) for problem in each.problems] == []


class TestCopies:
    @pytest.fixture(autouse=True)
    def no_links(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object, **__: object) -> None:
            raise PermissionError(errno.EPERM, "as for another owner's file")

        monkeypatch.setattr(os, "link", refuse)

    def test_a_short_write_does_not_cut_a_copy(
        self, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = make_source(tmp_path / "source")
        sync(source, staging)
        (source / "source-0").write_bytes(b"changed")
        pwrite = os.pwrite
        monkeypatch.setattr(os, "pwrite", lambda file, chunk, at: pwrite(file, chunk[:1000], at))
        monkeypatch.setattr(os, "write", lambda file, chunk: pytest.fail("a write that may be short"))
        assert sync(source, staging).copied == 3
        assert_intact(staging)

    @pytest.mark.parametrize("damage", [b"", b"?" * 3000])
    def test_a_damaged_file_is_downloaded_instead_of_copied(self, tmp_path: Path, staging: Path, damage: bytes) -> None:
        source = make_source(tmp_path / "source")
        first = sync(source, staging)
        (source / "source-0").write_bytes(b"changed")
        damaged = staging / "versions" / first.digest / "data" / "source-1"
        damaged.chmod(0o644)
        damaged.write_bytes(damage)
        report = sync(source, staging)
        assert (report.copied, report.downloaded) == (2, 2)
        assert (staging / "versions" / report.digest / "data" / "source-1").read_bytes() != damage

    def test_copies_that_do_not_fit_are_noticed_at_the_first_one(
        self, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = make_source(tmp_path / "source", files=9)
        sync(source, staging)
        (source / "source-0").write_bytes(b"changed")
        monkeypatch.setattr(leftovers.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 10_000))  # type: ignore[attr-defined]
        with pytest.raises(KubetrainError, match="10,000 bytes free, but the download needs 21,007"):
            sync(source, staging)

    def test_what_an_interrupted_sync_left_needs_no_space_again(
        self, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = make_source(tmp_path / "source", files=1)
        sync(source, staging)
        for number in range(1, 10):
            (source / f"source-{number}").write_bytes(os.urandom(3000))
        interrupt(source, staging, "source-9")
        (partial,) = staging.glob("versions/.*.partial")
        (partial / "data" / "source-0").unlink()
        monkeypatch.setattr(leftovers.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 5000))  # type: ignore[attr-defined]
        assert sync(source, staging).copied == 1


class TestLostFiles:
    @pytest.mark.parametrize("method", ["has_intact_manifest", "entries"])
    def test_a_version_that_is_pruned_while_it_is_read_is_not_reused(
        self, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch, method: str
    ) -> None:
        source = make_source(tmp_path / "source")
        sync(source, staging)
        (source / "source-0").write_bytes(b"changed")
        read = getattr(DatasetVersion, method)

        def pruned(version: DatasetVersion) -> Any:
            shutil.rmtree(version.path)
            return read(version)

        monkeypatch.setattr(DatasetVersion, method, pruned)
        assert sync(source, staging).downloaded == 4

    def lose(self, version: Path, *, how: str) -> None:
        for name in ("source-1", "source-2"):
            path = version / "data" / name
            if how == "deleted":
                path.unlink()
            else:
                path.chmod(0o644)
                os.truncate(path, 100)

    @pytest.mark.parametrize("how", ["deleted", "cut"])
    def test_a_version_that_lost_files_is_mended(
        self, tmp_path: Path, staging: Path, how: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        source = make_source(tmp_path / "source", files=10)
        first = sync(source, staging)
        self.lose(staging / "versions" / first.digest, how=how)
        again = sync(source, staging)
        assert (again.digest, again.downloaded, again.linked) == (first.digest, 2, 8)
        assert "source-1" in caplog.text
        assert_intact(staging)

    def test_a_dry_run_says_what_is_to_be_downloaded(self, tmp_path: Path, staging: Path) -> None:
        source = make_source(tmp_path / "source")
        self.lose(staging / "versions" / sync(source, staging).digest, how="deleted")
        assert not preview_sync(DirectoryStore(source), staging).exists


class TestVolumes:
    @pytest.mark.parametrize("number", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
    def test_one_without_locks_is_used_with_a_warning(
        self,
        tmp_path: Path,
        staging: Path,
        number: int,
        monkeypatch: pytest.MonkeyPatch,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        def refuse(*_: object) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(locks.fcntl, "flock", refuse)
        assert sync(make_source(tmp_path / "source"), staging).downloaded == 4
        assert caplog.text.count("has no file locks") == 1
        sync(make_source(tmp_path / "other"), staging)
        assert caplog.text.count(f"the volume of {staging} has no file locks") == 1, "one warning for all versions"

    def test_pods_of_other_users_can_read_a_version_whatever_the_umask(self, tmp_path: Path, staging: Path) -> None:
        (source := tmp_path / "source").mkdir()
        make_source(source / "folder")
        before = os.umask(0o077)
        try:
            version = staging / "versions" / sync(source, staging).digest
            assert os.umask(0o077) == 0o077
        finally:
            os.umask(before)
        for path in (staging, version, *version.rglob("*")):
            assert path.stat().st_mode & 0o777 == (0o755 if path.is_dir() else 0o444)


class TestNesting:
    @pytest.mark.parametrize("below", ["", "versions-here", "a/b"])
    def test_versions_inside_the_dataset_are_refused(self, tmp_path: Path, below: str) -> None:
        source = make_source(tmp_path / "source")
        for act in (transfer_dataset, preview_sync):
            with pytest.raises(KubetrainError, match="is inside the dataset"):
                act(DirectoryStore(source), source / below)
        assert len(list(source.iterdir())) == 4

    def test_a_link_into_the_dataset_is_inside(self, tmp_path: Path) -> None:
        source = make_source(tmp_path / "source")
        (tmp_path / "link").symlink_to(source)
        with pytest.raises(KubetrainError, match="is inside the dataset"):
            sync(source, tmp_path / "link" / "staging")

    def test_a_dataset_beside_the_versions_is_fine(self, tmp_path: Path, staging: Path) -> None:
        staging.mkdir()
        assert sync(make_source(staging / "source"), staging).downloaded == 4


class TestInterruptedSyncs:
    def test_the_sync_of_another_dataset_does_not_delete_them(self, tmp_path: Path, staging: Path) -> None:
        big, small = make_source(tmp_path / "big"), make_source(tmp_path / "small")
        interrupt(big, staging, "big-3")
        sync(small, staging)
        report = sync(big, staging)
        assert (report.downloaded, report.resumed) == (1, 3)

    @pytest.mark.parametrize("name", ["unfinished", "large", "data"])
    def test_links_in_them_are_not_followed(self, tmp_path: Path, staging: Path, name: str) -> None:
        source, elsewhere = make_source(tmp_path / "source"), tmp_path / "elsewhere"
        interrupt(source, staging, "source-3")
        (partial,) = staging.glob("versions/.*.partial")
        shutil.rmtree(partial / name)
        elsewhere.mkdir()
        (partial / name).symlink_to(elsewhere)
        sync(source, staging)
        assert_intact(staging)
        assert not [*elsewhere.iterdir()]

    def test_the_sync_of_another_dataset_does_not_use_them(self, tmp_path: Path, staging: Path) -> None:
        big, small = make_source(tmp_path / "big"), make_source(tmp_path / "small")
        interrupt(big, staging, "big-3")
        (small / "big-0").hardlink_to(big / "big-0")
        report = sync(small, staging)
        assert (report.downloaded, report.resumed) == (5, 0)

    def test_they_are_deleted_after_a_week(self, tmp_path: Path, staging: Path) -> None:
        big, small = make_source(tmp_path / "big"), make_source(tmp_path / "small")
        interrupt(big, staging, "big-3")
        (partial,) = staging.glob("versions/.*.partial")
        long_ago = time.time() - 8 * 24 * 3600
        for path in (partial, partial / "verified.jsonl"):
            os.utime(path, (long_ago, long_ago))
        report = sync(small, staging)
        assert [path.name for path in (staging / "versions").iterdir()] == [report.digest]
        assert [path.name for path in (staging / ".locks").iterdir()] == [report.digest]

    def test_they_give_way_on_a_full_volume(
        self, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        big, small = make_source(tmp_path / "big"), make_source(tmp_path / "small")
        interrupt(big, staging, "big-3")
        (partial,) = staging.glob("versions/.*.partial")

        def disk_usage(_: Path) -> Any:
            return shutil._ntuple_diskusage(0, 0, 0 if partial.exists() else 12_000)  # type: ignore[attr-defined]

        monkeypatch.setattr(leftovers.shutil, "disk_usage", disk_usage)
        assert sync(small, staging).downloaded == 4
        assert not partial.exists()

    def test_a_sync_that_runs_keeps_its_files_on_a_full_volume(
        self, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        big, small = make_source(tmp_path / "big"), make_source(tmp_path / "small")
        interrupt(big, staging, "big-3")
        (partial,) = map(PartialVersion, staging.glob("versions/.*.partial"))
        monkeypatch.setattr(leftovers.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, 0))  # type: ignore[attr-defined]
        with version_locked(staging, partial.digest), pytest.raises(KubetrainError, match="has 0 bytes free"):
            sync(small, staging)
        assert sorted(path.name for path in partial.data.iterdir()) == ["big-0", "big-1", "big-2"]

    @pytest.mark.parametrize("moment", ["flush", "delete_journal"])
    def test_a_sync_killed_while_it_publishes_is_resumed(self, tmp_path: Path, staging: Path, moment: str) -> None:
        source = make_source(tmp_path / "source", files=20)
        program = f"""
import os, signal
from pathlib import Path
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.transfer import transfer_dataset
finish = PartialVersion.{moment}
def killed(partial):
    finish(partial)
    os.kill(os.getpid(), signal.SIGKILL)
PartialVersion.{moment} = killed
transfer_dataset(DirectoryStore(Path({str(source)!r})), Path({str(staging)!r}))
"""
        assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
        report = sync(source, staging)
        assert (report.downloaded, report.resumed) == (0, 20)
        assert_intact(staging)
        assert {path.name for path in (staging / "versions" / report.digest).iterdir()} == {"data", "manifest.jsonl"}

    def test_resuming_reports_progress(self, tmp_path: Path, staging: Path) -> None:
        source = make_source(tmp_path / "source", files=8)
        interrupt(source, staging, "source-7")
        seen: list[SyncProgress] = []
        transfer_dataset(DirectoryStore(source), staging, on_progress=seen.append)
        resuming = [each for each in seen if each.is_resuming]
        assert resuming[-1] == SyncProgress(7, 7 * 3000, 8, 8 * 3000, is_resuming=True)
        assert not seen[-1].is_resuming


class TestLargeObjects:
    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetch, "PART_BYTES", 1 << 20)
        monkeypatch.setattr(fetch, "LARGE_BYTES", 2 << 20)

    def test_one_that_is_half_there_is_resumed_where_the_rest_fits(
        self, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "source").mkdir()
        (tmp_path / "source" / "large").write_bytes(os.urandom(8 << 20))
        starts: list[int] = []

        class Counting(DirectoryStore):
            is_cut = True

            def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
                if self.is_cut and start >= 5 << 20:
                    raise KeyboardInterrupt
                starts.append(start)
                return super().read(key, etag, start, end)

        store = Counting(tmp_path / "source")
        with pytest.raises(KeyboardInterrupt):
            transfer_dataset(store, staging, concurrency=1)
        store.is_cut, there = False, len(starts)
        free = (8 - there + 1) << 20
        monkeypatch.setattr(leftovers.shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(0, 0, free))  # type: ignore[attr-defined]
        seen: list[SyncProgress] = []
        transfer_dataset(store, staging, on_progress=seen.append)
        assert there == 5
        assert len(set(starts)) == len(starts) == 8, "each part was read once"
        assert seen[-1].bytes == 8 << 20
        assert_intact(staging)

    def test_the_parts_of_one_object_take_linear_time(self, tmp_path: Path) -> None:
        parts = 100_000
        large = LargeObject(StoredObject("key", parts, "x"), tmp_path / "file", 1, {})
        calls: list[int] = []

        class Counted(dict[Any, str]):
            def __contains__(self, key: object) -> bool:
                calls.append(1)
                return super().__contains__(key)

        large._checksums = Counted()
        complete = [large.add_part(span, "x") for span in large.spans]
        assert complete == [False] * (parts - 1) + [True]
        assert len(calls) <= parts


class TestLocks:
    def test_another_dataset_does_not_wait(self, tmp_path: Path, staging: Path) -> None:
        big, small = make_source(tmp_path / "big"), make_source(tmp_path / "small")
        with SlowSync(big, staging):
            assert sync(small, staging).downloaded == 4
            assert len(published_versions(staging)) == 1, "the other sync still runs"

    def test_waiting_does_not_count_as_time(
        self, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source, reports, is_waiting = make_source(tmp_path / "source"), list[SyncReport](), threading.Event()
        monkeypatch.setattr(locks.log, "warning", lambda *_: is_waiting.set())
        with SlowSync(source, staging) as finish:
            started = time.monotonic()
            waiting = threading.Thread(target=lambda: reports.append(sync(source, staging)))
            waiting.start()
            assert is_waiting.wait(30)
            time.sleep(0.3)
            finish()
            waiting.join()
        assert reports[0].downloaded == 0
        assert reports[0].seconds <= time.monotonic() - started - 0.3

    def test_a_sync_that_waited_for_a_lock_that_was_deleted_waits_for_the_next_holder(
        self, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        waits, digest = threading.Semaphore(0), "0" * 16
        monkeypatch.setattr(locks.log, "warning", lambda *_: waits.release())
        staging.mkdir()

        def hold() -> None:
            with version_locked(staging, digest):
                pass

        with ThreadPoolExecutor() as threads, ExitStack() as next_holder:
            with version_locked(staging, digest):
                waiting = threads.submit(hold)
                assert waits.acquire(timeout=30)
                delete_lock(staging, digest)
                next_holder.enter_context(version_locked(staging, digest))
            assert waits.acquire(timeout=30), "it must not hold the version at the same time"
            assert not waiting.done()
            next_holder.close()
            waiting.result(timeout=30)


class SlowSync:
    """A sync in a thread, which waits at its first object until the block ends or calls the function it gets."""

    def __init__(self, source: Path, staging: Path) -> None:
        self._has_begun = has_begun = threading.Event()
        self._may_finish = may_finish = threading.Event()

        class Slow(DirectoryStore):
            def read(self, *arguments: Any) -> ObjectContent:
                has_begun.set()
                may_finish.wait(30)
                return super().read(*arguments)

        self._thread = threading.Thread(target=transfer_dataset, args=(Slow(source), staging))

    def __enter__(self) -> Callable[[], None]:
        self._thread.start()
        assert self._has_begun.wait(30)
        return self._may_finish.set

    def __exit__(self, *_: object) -> None:
        self._may_finish.set()
        self._thread.join()


class TestEtags:
    """ETags that do not tell contents apart, and objects that are not as listed."""

    @pytest.fixture
    def s3(self) -> FaultyS3:
        return FaultyS3()

    @pytest.fixture
    def store(self, s3: FaultyS3) -> Iterator[ObjectStore]:
        with s3.serving() as url:
            yield open_store("s3://bucket/data", url, Access.ANONYMOUS)

    def put(self, s3: FaultyS3, key: str, content: bytes, etag: str, day: int) -> None:
        s3.put(f"data/{key}", content, etag=etag)
        s3.objects[f"data/{key}"].modified = datetime(2026, 1, day, tzinfo=UTC)

    @pytest.mark.parametrize("etag", ["", "constant", "d41d8cd98f00b204e9800998ecf8427e-1"])
    def test_an_object_overwritten_with_one_of_the_same_size_is_noticed(
        self, s3: FaultyS3, store: ObjectStore, staging: Path, etag: str
    ) -> None:
        self.put(s3, "a", b"old bytes!", etag, 1)
        self.put(s3, "b", b"others", etag, 1)
        first = transfer_dataset(store, staging)
        assert transfer_dataset(store, staging).digest == first.digest
        self.put(s3, "a", b"new bytes!", etag, 2)
        second = transfer_dataset(store, staging)
        assert (second.downloaded, second.linked) == (1, 1)
        assert (staging / "versions" / second.digest / "data" / "a").read_bytes() == b"new bytes!"
        assert_intact(staging)

    def test_an_object_replaced_between_its_parts_is_not_published(
        self, s3: FaultyS3, store: ObjectStore, staging: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetch, "PART_BYTES", 1000)
        monkeypatch.setattr(fetch, "LARGE_BYTES", 2000)
        self.put(s3, "a", b"1" * 4000, "", 1)

        def replace(*_: object) -> bool:
            self.put(s3, "a", b"2" * 4000, "", 2)
            return False

        s3.fail("data/a", lambda *_: False, times=2)
        s3.fail("data/a", replace)
        report = transfer_dataset(store, staging, concurrency=1)
        assert (staging / "versions" / report.digest / "data" / "a").read_bytes() == b"2" * 4000

    def test_ordinary_etags_alone_identify_a_version(self, s3: FaultyS3, store: ObjectStore, staging: Path) -> None:
        for key in "abc":
            self.put(s3, key, b"same" if key < "c" else b"other", "", 1)
            s3.put(f"data/{key}", s3.objects[f"data/{key}"].content)
        first = transfer_dataset(store, staging).digest
        for stored in s3.objects.values():
            stored.modified = datetime(2026, 1, 2, tzinfo=UTC)
        again = transfer_dataset(store, staging)
        assert (again.digest, again.downloaded) == (first, 0)

    def test_a_key_that_is_listed_but_does_not_exist_is_named(
        self, s3: FaultyS3, store: ObjectStore, staging: Path
    ) -> None:
        s3.put("data/dangling", b"x")
        s3.fail("*", lambda handler, _: handler.error(404, "NoSuchKey") or True, times=3)
        with pytest.raises(KubetrainError, match=r"is changing.*'dangling'.*9dd4e461268c8034f5c8564e155c67a6"):
            transfer_dataset(store, staging)

    def test_an_object_that_keeps_changing_is_named_with_both_etags(
        self, s3: FaultyS3, store: ObjectStore, staging: Path
    ) -> None:
        s3.put("data/a", b"0")
        for content in (b"1", b"2", b"3"):
            s3.fail("data/a", replaced("data/a", content))
        listed, now = "c81e728d9d4c2f636f067f89cc14862c", "eccbc87e4b5ce2fe28308fd9f2a7baf3"
        with pytest.raises(KubetrainError, match=f"is changing.*'a' is listed with ETag '{listed}'.*{now}"):
            transfer_dataset(store, staging)

    def test_an_etag_that_a_proxy_made_weak_is_the_same(self, s3: FaultyS3, store: ObjectStore, staging: Path) -> None:
        s3.put("data/a", b"0")
        weak = f'W/"{s3.objects["data/a"].etag}"'
        s3.fail("data/a", lambda handler, stored: handler.answer(200, stored.content, {"ETag": weak}) is None)
        assert transfer_dataset(store, staging).downloaded == 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(1, 100))
def test_an_interrupt_at_any_moment_ends_the_threads_that_check_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    monkeypatch.setattr(resume, "BATCH", 1)
    checksum = f"md5:{hashlib.md5(b'content').hexdigest()}"
    entries = [Entry(StoredObject(str(number), 7, ""), checksum) for number in range(6)]
    for entry in entries:
        (tmp_path / entry.object.key).write_bytes(b"content")
    checking = closing(resume.IntactFiles().of(entries, tmp_path))
    with suppress(KeyboardInterrupt), checking as intact, interrupt_at(moment, uses_locks_of_futures):
        assert {entry for found in intact for entry in found} == {*entries}
