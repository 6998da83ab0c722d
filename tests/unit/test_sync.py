"""Plan, transfer and publish: a published version is complete and correct."""

import errno
import json
import os
import re
import shutil
import tempfile
import threading
import tracemalloc
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kubetrain_components.object_store import checksums, retries
from kubetrain_components.object_store.checksums import algorithm_of, checksum_of
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.object_store.store import (
    ObjectChanged,
    ObjectContent,
    StoredObject,
    StoreError,
    StoreUnavailable,
)
from kubetrain_components.sync_dataset import plan, sorted_records
from kubetrain_components.sync_dataset.case_conflicts import check_case_conflicts
from kubetrain_components.sync_dataset.manifest import Entry
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.plan import _are_plain, _problem_of, listing_sha256, plan_sync
from kubetrain_components.sync_dataset.progress import SyncProgress
from kubetrain_components.sync_dataset.publish import published_versions, read_version
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_components.sync_dataset.verify import verify_version
from kubetrain_pipelines.cli.verify import verify_folder
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.termination import MAX_BYTES


def objects(*keys: str) -> list[StoredObject]:
    return [StoredObject(key, 1, f"etag of {key}") for key in keys]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    for key, content in {"a": b"1", "b/c": b"22", "b/ü": b"333"}.items():
        path = folder / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


def interrupt_at(key: str, source: Path, staging: Path) -> None:
    """Interrupt a sync at this key."""

    class Broken(DirectoryStore):
        def read(self, wanted: str, *rest: Any) -> ObjectContent:
            if wanted == key:
                raise KeyboardInterrupt
            return super().read(wanted, *rest)

    with pytest.raises(KeyboardInterrupt):
        transfer_dataset(Broken(source), staging, concurrency=1)


def no_links(*_: object, **__: object) -> None:
    raise PermissionError(errno.EPERM, "as for another owner's file")


def damage_manifest(manifest: Path, damage: str) -> None:
    lines = manifest.read_bytes().splitlines(keepends=True)
    manifest.chmod(0o644)
    match damage:
        case "header":
            lines[0] = b"\xff{"
        case "body":
            lines[2] = b"\xff{\n"
        case "cut short":
            lines.pop()
    manifest.write_bytes(b"".join(lines))


class TestPlan:
    def test_the_digest_does_not_depend_on_the_order_of_the_listing(self) -> None:
        plans = [plan_sync("s3://b/p", listed) for listed in (objects("b", "a"), objects("a", "b"))]
        assert plans[0].sha256 == plans[1].sha256
        assert plans[0].digest == listing_sha256(objects("a", "b"))[:16]
        assert [each.key for each in plans[0].objects] == ["a", "b"]

    def test_the_hash_is_over_json_lines(self) -> None:
        import hashlib

        lines = '["a",1,"x"]\n["ü",2,"y"]\n'
        listed = [StoredObject("a", 1, "x"), StoredObject("ü", 2, "y")]
        assert listing_sha256(listed) == hashlib.sha256(lines.encode()).hexdigest()

    @pytest.mark.parametrize("change", [("c", 1, "x"), ("a", 2, "x"), ("a", 1, "y")])
    def test_the_digest_depends_on_keys_sizes_and_etags(self, change: tuple[str, int, str]) -> None:
        assert listing_sha256([StoredObject(*change)]) != listing_sha256([StoredObject("a", 1, "x")])

    def test_folder_markers_are_skipped(self) -> None:
        listed = [StoredObject("", 0, "x"), StoredObject("b/", 0, "x"), *objects("b/c")]
        assert [each.key for each in plan_sync("s3://b/p", listed).objects] == ["b/c"]

    @pytest.mark.parametrize("listed", [[], [StoredObject("only/", 0, "x")]])
    def test_an_empty_dataset_is_refused(self, listed: list[StoredObject]) -> None:
        with pytest.raises(KubetrainError, match="no objects under s3://b/p"):
            plan_sync("s3://b/p", listed)

    @pytest.mark.parametrize(
        "key", ["../x", "a/../../x", "/abs", "a//b", "./a", "a/.", "nul\0", "line\nbreak", "x" * 256, "dir/"]
    )
    def test_a_key_that_cannot_be_a_file_below_the_target_is_named(self, key: str) -> None:
        plan = plan_sync("s3://b/p", objects("fine", key))
        assert list(plan.objects) == list(objects("fine"))
        with pytest.raises(KubetrainError, match=re.escape(repr(key))):
            plan.check_keys()

    @given(st.lists(st.text("ab./\n\x7fü", max_size=5), min_size=1, max_size=4), st.booleans())
    def test_the_fast_check_of_all_keys_finds_what_the_check_of_each_key_finds(
        self, keys: list[str], is_long: bool
    ) -> None:
        keys += ["x" * 256] * is_long
        if _are_plain(keys):
            assert [key for key in keys if _problem_of(key)] == []
        else:  # what only may have a problem is looked at more closely
            assert any(_problem_of(key) or not key.isascii() or key[:1] == "." or "/." in key for key in keys)

    @pytest.mark.parametrize("key", ["file..txt", "a..b/c", "...", "-rf", "ünï", "x" * 255])
    def test_odd_but_valid_keys_are_files(self, key: str) -> None:
        assert [each.key for each in plan_sync("s3://b/p", objects(key)).objects] == [key]

    @pytest.mark.parametrize("keys", [("a", "a/b"), ("a", "a!", "a-b", "a-b/c", "a/b/c", "b")])
    def test_a_key_that_is_also_a_folder_is_refused(self, keys: tuple[str, ...]) -> None:
        with pytest.raises(KubetrainError, match="'a' is a file and a folder at once"):
            plan_sync("s3://b/p", objects(*keys))

    @settings(max_examples=50, deadline=None)
    @example(["-/a", "--/a"])
    @given(st.lists(st.text("a/-b", max_size=4).filter(lambda key: not _problem_of(key)), min_size=1, max_size=6))
    def test_keys_that_are_also_folders_are_found_in_any_order(self, keys: list[str]) -> None:
        conflicts = [key for key in keys if any(other.startswith(f"{key}/") for other in keys)]
        if len(set(keys)) < len(keys) or conflicts:
            with pytest.raises(KubetrainError) as caught:
                plan_sync("s3://b/p", objects(*keys))
            assert all(f"{key!r} is a file and a folder at once" in str(caught.value) for key in conflicts)
        else:
            plan = plan_sync("s3://b/p", objects(*keys))
            assert list(plan.folders) == sorted({key.partition("/")[0] for key in keys if "/" in key})
            assert plan.bytes == len(keys)

    @pytest.mark.parametrize(
        ("keys", "first", "second"),
        [
            (("A.txt", "a.txt"), "A.txt", "a.txt"),
            (("caf\u00e9", "cafe\u0301"), "cafe\u0301", "caf\u00e9"),
            (("train/Cat/1.jpg", "train/Dog/3.jpg", "train/cat/2.jpg"), "train/Cat", "train/cat"),
            (("D/E/x", "D/e/f/x"), "D/E", "D/e"),
        ],
    )
    def test_names_that_are_one_on_the_volume_are_refused(self, keys: tuple[str, ...], first: str, second: str) -> None:
        def same(one: str, other: str) -> bool:
            return one.casefold() == other.casefold() or {one, other} == {"caf\u00e9", "cafe\u0301"}

        check_case_conflicts(plan_sync("s3://b/p", objects("b", "c", "b.txt")), same)
        with pytest.raises(KubetrainError, match="on this volume") as caught:
            check_case_conflicts(plan_sync("s3://b/p", objects("b", *keys)), same)
        assert f"{first!r} and {second!r}" in str(caught.value)

    @pytest.mark.parametrize("keys", [("straße", "strasse"), ("a/X", "A/x", "b/x"), ("x", "x.")])
    def test_similar_names_that_the_volume_keeps_apart_are_files(self, keys: tuple[str, ...]) -> None:
        asked: list[set[str]] = []
        check_case_conflicts(plan_sync("s3://b/p", objects(*keys)), lambda *names: bool(asked.append(set(names))))
        assert asked in ([set(keys)], [{"A", "a"}])

    def test_this_volume_does_not_ignore_case(self, tmp_path: Path) -> None:
        with (partial := PartialVersion(tmp_path / "versions" / ".x.partial")).opened("source"):
            assert not partial.ignores_case()


class TestTransfer:
    def test_a_version_holds_the_objects_and_their_manifest(self, source: Path, tmp_path: Path) -> None:
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        version = read_version(tmp_path / "staging" / "versions" / report.digest)
        assert version is not None
        assert (report.objects, report.bytes, report.downloaded) == (3, 6, 3)
        assert (version.data / "b" / "c").read_bytes() == b"22"
        assert (version.data / "b" / "c").stat().st_mode & 0o777 == 0o444
        assert version.header["objects"] == 3
        assert version.header["sha256"].startswith(report.digest)
        assert [entry.object.key for entry in version.entries()] == ["a", "b/c", "b/ü"]
        assert verify_version(version) == []
        assert sorted(path.name for path in version.path.iterdir()) == ["data", "manifest.jsonl"]

    def test_a_second_sync_downloads_nothing(self, source: Path, tmp_path: Path) -> None:
        first = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        second = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert second.digest == first.digest
        assert (second.downloaded, second.linked, second.copied) == (0, 0, 0)

    def test_a_changed_source_makes_a_new_version_that_links_unchanged_files(
        self, source: Path, tmp_path: Path
    ) -> None:
        first = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        (source / "a").write_bytes(b"changed")
        second = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        versions = tmp_path / "staging" / "versions"
        assert (second.downloaded, second.linked) == (1, 2)
        assert (versions / first.digest / "data" / "a").read_bytes() == b"1", "a version never changes"
        assert (versions / first.digest / "data/b/c").samefile(versions / second.digest / "data/b/c")
        assert {version.path.name for version in published_versions(tmp_path / "staging")} == {
            first.digest,
            second.digest,
        }
        assert all(not each.problems for each in verify_folder(tmp_path / "staging"))

    def test_an_interrupted_sync_publishes_nothing_and_is_resumed(self, source: Path, tmp_path: Path) -> None:
        interrupt_at("b/c", source, tmp_path / "staging")
        assert published_versions(tmp_path / "staging") == []
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert (report.downloaded, report.resumed) == (2, 1), "what was verified is not fetched again"
        assert all(not each.problems for each in verify_folder(tmp_path / "staging"))
        version = tmp_path / "staging" / "versions" / report.digest
        assert sorted(path.name for path in version.iterdir()) == ["data", "manifest.jsonl"]

    @pytest.mark.parametrize("torn", [b"", b"2", b"?"])
    def test_a_file_damaged_since_the_interruption_is_fetched_again(
        self, source: Path, tmp_path: Path, torn: bytes
    ) -> None:
        interrupt_at("b/c", source, tmp_path / "staging")
        (left,) = (tmp_path / "staging").glob("versions/.*.partial/data/a")
        left.chmod(0o644)
        left.write_bytes(torn)
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert (report.downloaded, report.resumed) == (3, 0)
        assert (tmp_path / "staging" / "versions" / report.digest / "data" / "a").read_bytes() == b"1"

    def test_a_damaged_line_of_the_journal_is_ignored(self, source: Path, tmp_path: Path) -> None:
        interrupt_at("b/c", source, tmp_path / "staging")
        (journal,) = (tmp_path / "staging").glob("versions/.*.partial/verified.jsonl")
        journal.write_bytes(journal.read_bytes()[:-9] + b"\0\0\xff")
        assert transfer_dataset(DirectoryStore(source), tmp_path / "staging").downloaded == 3

    def test_files_downloaded_for_an_older_listing_are_reused(self, source: Path, tmp_path: Path) -> None:
        interrupt_at("b/c", source, tmp_path / "staging")
        (source / "d").write_bytes(b"4444")
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert (report.downloaded, report.resumed) == (3, 1)
        assert all(not each.problems for each in verify_folder(tmp_path / "staging"))

    def test_a_file_of_an_older_listing_is_fetched_again_if_its_object_has_changed(
        self, source: Path, tmp_path: Path
    ) -> None:
        interrupt_at("b/c", source, tmp_path / "staging")
        (source / "a").write_bytes(b"9")
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert (report.downloaded, report.resumed) == (3, 0)
        assert (tmp_path / "staging" / "versions" / report.digest / "data" / "a").read_bytes() == b"9"

    def test_unfinished_versions_of_older_listings_are_deleted(self, source: Path, tmp_path: Path) -> None:
        interrupt_at("b/c", source, tmp_path / "staging")
        (source / "d").write_bytes(b"4444")
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert [path.name for path in (tmp_path / "staging" / "versions").iterdir()] == [report.digest]

    def test_a_corrupt_object_is_retried_and_never_published(self, source: Path, tmp_path: Path) -> None:
        attempts: list[str] = []

        class Corrupting(DirectoryStore):
            def read(self, key: str, *rest: Any) -> ObjectContent:
                attempts.append(key)
                return (
                    ObjectContent(iter([b"x"]), checksum="md5:" + "0" * 32) if key == "a" else super().read(key, *rest)
                )

        with pytest.raises(StoreError, match="object 'a' arrived corrupt 3 times"):
            transfer_dataset(Corrupting(source), tmp_path / "staging")
        assert attempts.count("a") == 3
        assert published_versions(tmp_path / "staging") == []

    def test_an_object_corrupted_once_is_fetched_again(self, source: Path, tmp_path: Path) -> None:
        bad = iter([ObjectContent(iter([b"x"]), checksum="md5:c4ca4238a0b923820dcc509a6f75849b")])

        class OnceCorrupting(DirectoryStore):
            def read(self, key: str, *rest: Any) -> ObjectContent:
                return next(bad, super().read(key, *rest)) if key == "a" else super().read(key, *rest)

        report = transfer_dataset(OnceCorrupting(source), tmp_path / "staging")
        assert (tmp_path / "staging" / "versions" / report.digest / "data" / "a").read_bytes() == b"1"

    def test_a_truncated_object_is_refused(self, source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.01)
        monkeypatch.setenv(retries.ATTEMPTS_VARIABLE, "6")

        class Short(DirectoryStore):
            def read(self, key: str, *rest: Any) -> ObjectContent:
                return ObjectContent(iter([b""]))

        with pytest.raises(StoreError, match="'b/c' ended after 0 bytes of 2"):
            transfer_dataset(Short(source), tmp_path / "staging")

    def test_a_source_that_changes_during_the_sync_is_listed_again(self, source: Path, tmp_path: Path) -> None:
        class Changing(DirectoryStore):
            def list(self) -> Iterator[StoredObject]:
                yield from list(super().list())
                if (source / "a").read_bytes() == b"1":
                    (source / "a").write_bytes(b"2!")

        report = transfer_dataset(Changing(source), tmp_path / "staging")
        assert (tmp_path / "staging" / "versions" / report.digest / "data" / "a").read_bytes() == b"2!"

    def test_a_source_that_keeps_changing_fails(self, source: Path, tmp_path: Path) -> None:
        class Restless(DirectoryStore):
            def read(self, key: str, *rest: Any) -> ObjectContent:
                raise ObjectChanged("changed")

        with pytest.raises(KubetrainError, match="is changing: it differed from its listing 3 times"):
            transfer_dataset(Restless(source), tmp_path / "staging")

    def test_two_syncs_at_once_share_the_work(self, source: Path, tmp_path: Path) -> None:
        reports = []
        syncs = [
            threading.Thread(
                target=lambda: reports.append(transfer_dataset(DirectoryStore(source), tmp_path / "staging"))
            )
            for _ in range(2)
        ]
        for sync in syncs:
            sync.start()
        for sync in syncs:
            sync.join()
        assert sorted(report.downloaded for report in reports) == [0, 3]

    def test_a_request_that_fails_once_is_retried(self, source: Path, tmp_path: Path) -> None:
        def cut_short() -> Iterator[bytes]:
            yield b"3"
            raise StoreUnavailable("the connection was lost")

        cut = iter([ObjectContent(cut_short())])

        class Unreliable(DirectoryStore):
            def read(self, key: str, *rest: Any) -> ObjectContent:
                return next(cut, super().read(key, *rest)) if key == "b/ü" else super().read(key, *rest)

        report = transfer_dataset(Unreliable(source), tmp_path / "staging")
        assert (tmp_path / "staging" / "versions" / report.digest / "data" / "b" / "ü").read_bytes() == b"333"

    def test_a_request_for_a_changed_object_is_not_retried(self, source: Path, tmp_path: Path) -> None:
        reads: list[str] = []

        class Changed(DirectoryStore):
            def read(self, key: str, *rest: Any) -> ObjectContent:
                reads.append(key)
                raise ObjectChanged("changed")

        with pytest.raises(KubetrainError, match="is changing"):
            transfer_dataset(Changed(source), tmp_path / "staging", concurrency=1)
        assert len(reads) == 3, "one in each round"

    def test_files_are_copied_if_they_cannot_be_linked(self, source: Path, tmp_path: Path) -> None:
        first = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        version = tmp_path / "staging" / "versions" / first.digest
        (source / "a").write_bytes(b"changed")
        with tempfile.TemporaryDirectory(dir="/dev/shm") as another_volume:
            version.symlink_to(shutil.move(version, another_volume))
            report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert (report.downloaded, report.linked, report.copied) == (1, 0, 2)
        copy = tmp_path / "staging" / "versions" / report.digest / "data" / "b" / "c"
        assert (copy.read_bytes(), copy.stat().st_mode & 0o777) == (b"22", 0o444)

    def test_an_interrupted_copy_leaves_no_file(self, source: Path, tmp_path: Path) -> None:
        partial = PartialVersion(tmp_path / "versions" / ".x.partial")
        (tmp_path / "a").write_bytes(b"1")
        entry = Entry(StoredObject("key", 1, "x"), "md5:c4ca4238a0b923820dcc509a6f75849b")
        with partial.opened("source"):
            (partial.data / "key").mkdir()  # moving the copy into place fails
            with pytest.MonkeyPatch.context() as patch, pytest.raises(OSError):
                patch.setattr(os, "link", no_links)
                partial.reuse(str(tmp_path / "a"), entry)
        assert sorted(path.name for path in partial.path.rglob("*") if path.is_file()) == ["source", "verified.jsonl"]

    def test_a_file_that_another_version_lost_is_fetched(self, source: Path, tmp_path: Path) -> None:
        first = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        (tmp_path / "staging" / "versions" / first.digest / "data" / "b" / "c").unlink()
        (source / "a").write_bytes(b"changed")
        second = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert (second.downloaded, second.linked) == (2, 1)

    @pytest.mark.parametrize("damage", ["header", "body", "cut short"])
    def test_a_damaged_version_is_moved_aside_and_synced_again(
        self, source: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, damage: str
    ) -> None:
        first = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        manifest = tmp_path / "staging" / "versions" / first.digest / "manifest.jsonl"
        damage_manifest(manifest, damage)
        again = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert (again.digest, again.downloaded, again.linked) == (first.digest, 3, 0), "nothing of it is reused"
        assert all(not each.problems for each in verify_folder(tmp_path / "staging"))
        (aside,) = (tmp_path / "staging" / "versions").glob(f".damaged-{first.digest}-*")
        assert str(aside) in caplog.text
        assert (aside / "data" / "a").read_bytes() == b"1", "for people to look at"

    @pytest.mark.parametrize("damage", ["header", "body", "cut short"])
    def test_no_file_of_a_damaged_version_is_reused(self, source: Path, tmp_path: Path, damage: str) -> None:
        first = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        damage_manifest(tmp_path / "staging" / "versions" / first.digest / "manifest.jsonl", damage)
        (source / "a").write_bytes(b"changed")
        second = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert (second.downloaded, second.linked) == (3, 0)

    def test_the_report_names_every_folder_that_fits(self, source: Path, tmp_path: Path) -> None:
        for number in range(150):
            (source / f"class-{number}").mkdir()
            (source / f"class-{number}" / "x").write_bytes(b"x")
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert len(report.folders) == 151
        assert {"b", "class-149"} < set(report.folders)
        assert not report.folders_cut

    def test_the_report_says_if_it_cannot_name_every_folder(self, source: Path, tmp_path: Path) -> None:
        for number in range(300):
            (source / f"ü{number}").mkdir()
            (source / f"ü{number}" / "x").write_bytes(b"x")
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        assert report.folders_cut
        assert 1900 < len(json.dumps(report.folders)) <= 2002
        assert len(json.dumps({"status": "completed", **asdict(report)})) < MAX_BYTES

    def test_progress_ends_at_the_total(self, source: Path, tmp_path: Path) -> None:
        seen: list[SyncProgress] = []
        transfer_dataset(DirectoryStore(source), tmp_path / "staging", on_progress=seen.append)
        assert seen[0] == SyncProgress(objects=0, bytes=0, total_objects=3, total_bytes=6)
        assert seen[-1] == SyncProgress(objects=3, bytes=6, total_objects=3, total_bytes=6)

    def test_a_target_that_cannot_be_written_is_named(self, source: Path) -> None:
        with pytest.raises(KubetrainError, match="cannot use /proc/nowhere"):
            transfer_dataset(DirectoryStore(source), Path("/proc/nowhere"))


class TestVerify:
    @pytest.fixture
    def version(self, source: Path, tmp_path: Path) -> Path:
        report = transfer_dataset(DirectoryStore(source), tmp_path / "staging")
        return tmp_path / "staging" / "versions" / report.digest

    def problems(self, folder: Path) -> list[str]:
        return [problem for each in verify_folder(folder) for problem in each.problems]

    def test_an_intact_version(self, version: Path) -> None:
        assert self.problems(version) == []

    def test_a_flipped_byte(self, version: Path) -> None:
        (version / "data" / "a").chmod(0o644)
        (version / "data" / "a").write_bytes(b"2")
        assert self.problems(version) == ["a does not match its checksum"]

    def test_a_truncated_and_a_missing_file(self, version: Path) -> None:
        (version / "data" / "b" / "c").chmod(0o644)
        (version / "data" / "b" / "c").write_bytes(b"2")
        (version / "data" / "a").unlink()
        assert self.problems(version) == ["a is missing", "b/c has 1 bytes, not 2"]

    def test_a_file_that_was_added(self, version: Path) -> None:
        (version / "data" / "b" / ".added").write_bytes(b"x")
        (version / "data" / "link").symlink_to("b")
        added = ["b/.added is not in manifest.jsonl", "link is not in manifest.jsonl"]
        assert self.problems(version) == added

    def test_a_manifest_that_cannot_be_read(self, version: Path) -> None:
        damage_manifest(version / "manifest.jsonl", "body")
        assert self.problems(version) == [f"line 3 of {version / 'manifest.jsonl'} is damaged"]
        damage_manifest(version / "manifest.jsonl", "header")
        assert self.problems(version) == ["manifest.jsonl is damaged"]

    def test_an_edited_manifest(self, version: Path) -> None:
        manifest = version / "manifest.jsonl"
        manifest.chmod(0o644)
        manifest.write_text(manifest.read_text().replace('"key": "a"', '"key": "b/d"'))
        assert any("does not hash to its digest" in problem for problem in self.problems(version))

    def test_a_file_and_its_checksum_that_were_both_changed(self, version: Path) -> None:
        manifest, file = version / "manifest.jsonl", version / "data" / "a"
        (entry,) = (Entry.from_line(line) for line in manifest.read_bytes().splitlines() if b'"key": "a"' in line)
        for path in (manifest, file):
            path.chmod(0o644)
        file.write_bytes(b"2")
        changed = checksum_of(file, algorithm_of(entry.checksum))
        manifest.write_text(manifest.read_text().replace(entry.checksum, changed))
        (problem,) = self.problems(version)
        assert "lines_sha256" in problem

    @pytest.mark.parametrize("edit", ['"objects": 3', '"bytes": 6'])
    def test_a_header_that_was_edited(self, version: Path, edit: str) -> None:
        manifest = version / "manifest.jsonl"
        manifest.chmod(0o644)
        manifest.write_text(manifest.read_text().replace(edit, f"{edit}0"))
        (problem,) = self.problems(version)
        assert "has 3 objects with 6 bytes, but its header differs" in problem

    def test_an_incomplete_version_is_not_listed_and_fails_verification(self, version: Path, tmp_path: Path) -> None:
        staging = tmp_path / "staging"
        (version / "manifest.jsonl").rename(version / "gone")
        assert published_versions(staging) == []
        with pytest.raises(KubetrainError, match="nothing complete in"):
            verify_folder(staging)

    def test_a_version_under_another_name_is_damaged(self, version: Path) -> None:
        moved = version.rename(version.with_name("0" * 16))
        assert read_version(moved) is None
        assert self.problems(moved) == ["manifest.jsonl is damaged"]

    def test_memory_does_not_grow_with_the_objects(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        for module, name, value in (
            (sorted_records, "MAX_IN_MEMORY", 20),
            (sorted_records, "MAX_FILES", 4),
            (sorted_records, "BATCH", 10),
            (plan, "LINES_PER_HASH_UPDATE", 10),
            (checksums, "CHUNK_BYTES", 100),
        ):
            monkeypatch.setattr(module, name, value)

        def peak(count: int) -> int:
            source, staging = tmp_path / f"source{count}", tmp_path / f"staging{count}"
            source.mkdir()
            for number in range(count):
                (source / f"{number:0200}").touch()
            version = staging / "versions" / transfer_dataset(DirectoryStore(source), staging).digest
            (version / "data" / "added").touch()
            # Whenever the interpreter's table of interned strings is full, it grows by megabytes.
            return min(peak_of_verifying(version) for _ in range(2))

        def peak_of_verifying(version: Path) -> int:
            tracemalloc.start()
            assert self.problems(version) == ["added is not in manifest.jsonl"]
            found = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            return found

        assert peak(400) < 2 * peak(100)
