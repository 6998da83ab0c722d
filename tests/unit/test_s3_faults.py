"""Syncs from an S3 server with faults, none of which may damage a version."""

import base64
import contextlib
import hashlib
import json
import os
import re
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from awscrt.checksums import crc64nvme

from kubetrain_components.object_store import retries
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.retries import ATTEMPTS_VARIABLE, with_retries
from kubetrain_components.object_store.s3 import connect
from kubetrain_components.object_store.store import Access, AccessRefused, ObjectStore, StoreError
from kubetrain_components.sync_dataset import fetch
from kubetrain_components.sync_dataset.in_flight import MIN_REQUESTS
from kubetrain_components.sync_dataset.publish import read_version
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_components.sync_dataset.verify import verify_version
from kubetrain_trainer.errors import KubetrainError
from support.faulty_s3 import (
    Fault,
    FaultyS3,
    Handler,
    Stored,
    cut_short,
    damaged,
    early_hints,
    first_slice,
    flipped,
    ignores_range,
    refused,
    replaced,
    silent,
    surplus,
    until_closed,
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.01)
    monkeypatch.setenv(ATTEMPTS_VARIABLE, "6")


@pytest.fixture
def s3() -> FaultyS3:
    return FaultyS3()


@pytest.fixture
def url(s3: FaultyS3) -> Iterator[str]:
    with s3.serving() as url:
        yield url


@pytest.fixture
def store(url: str) -> ObjectStore:
    return open_store("s3://bucket/data", url, Access.ANONYMOUS)


def put(s3: FaultyS3, count: int = 5, size: int = 1000) -> dict[str, bytes]:
    contents = {f"folder/{number}": os.urandom(size) for number in range(count)}
    for key, content in contents.items():
        s3.put(f"data/{key}", content)
    return contents


def crc64nvme_of(content: bytes) -> str:
    return base64.b64encode(crc64nvme(content).to_bytes(8, "big")).decode()


def assert_published(staging: Path, report: SyncReport, contents: dict[str, bytes]) -> None:
    version = read_version(staging / "versions" / report.digest)
    assert version is not None
    assert verify_version(version) == []
    assert {
        path.relative_to(version.data).as_posix(): path.read_bytes() for path in files_below(version.data)
    } == contents


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if not path.is_dir()]


def assert_nothing_published(staging: Path) -> None:
    assert list((staging / "versions").glob("[!.]*")) == []


class TestKeys:
    @pytest.mark.parametrize(
        "key", ["../../evil", "a/../../evil", "/evil", "p//../evil", "./evil", "..", "nul\x00", "a\nb"]
    )
    def test_a_key_outside_the_target_is_named_and_never_requested(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, key: str
    ) -> None:
        put(s3)
        s3.put(f"data/{key}", b"evil")
        staging = tmp_path / "deep" / "staging"
        with pytest.raises(KubetrainError) as caught:
            transfer_dataset(store, staging)
        assert repr(key) in str(caught.value)
        assert s3.gets(f"data/{key}") == []
        assert_nothing_published(staging)
        assert [path for path in files_below(tmp_path) if "evil" in path.name or not path.is_relative_to(staging)] == []

    @pytest.mark.parametrize("key", ["../evil", b"caf\xe9".decode(errors="surrogateescape"), "x" * 256])
    def test_a_key_that_cannot_be_a_file_does_not_stop_the_others(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, key: str
    ) -> None:
        contents = put(s3)
        s3.put(f"data/{key}", b"evil")
        for _ in range(2):
            with pytest.raises(KubetrainError, match=re.escape(repr(key))):
                transfer_dataset(store, tmp_path)
        assert len(s3.gets("data/folder/0")) == 1
        del s3.objects[f"data/{key}"]
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, contents)
        assert (report.resumed, report.downloaded) == (len(contents), 0)

    def test_a_published_version_does_not_hide_a_key_that_cannot_be_a_file(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        put(s3)
        transfer_dataset(store, tmp_path)
        s3.put("data/a//b", b"x")
        with pytest.raises(KubetrainError, match="1 keys under s3://bucket/data cannot be files: 'a//b'"):
            transfer_dataset(store, tmp_path)

    def test_a_dataset_of_only_such_keys_is_refused(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path) -> None:
        s3.put("data/../x", b"x")
        with pytest.raises(KubetrainError, match=r"cannot be files: '\.\./x'"):
            transfer_dataset(store, tmp_path)

    def test_a_key_that_is_also_a_folder_is_found_before_any_download(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        put(s3)
        s3.put("data/folder", b"x")
        with pytest.raises(KubetrainError, match="'folder' is a file and a folder at once"):
            transfer_dataset(store, tmp_path)
        assert s3.gets("data/folder/0") == []

    @pytest.mark.parametrize(
        "key",
        ["file..txt", "a..b", "...", "50%25 + more", "a&b<c>\"d'", "ünï/çødé", "日本", "x" * 255, "-rf", "~", "a b"],
    )
    def test_an_odd_but_valid_key_is_a_file(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, key: str) -> None:
        s3.put(f"data/{key}", b"fine")
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, {key: b"fine"})

    def test_folder_markers_are_skipped_but_refused_if_they_have_content(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        contents = put(s3)
        s3.put("data/", b"")
        s3.put("data/folder/", b"")
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)
        s3.put("data/folder/", b"content")
        with pytest.raises(KubetrainError, match="'folder/'"):
            transfer_dataset(store, tmp_path)

    def test_a_link_in_an_unfinished_version_is_not_followed(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        contents = put(s3)
        s3.fail("data/folder/0", refused(404, "NoSuchBucket"))
        with pytest.raises(StoreError):
            transfer_dataset(store, tmp_path / "staging")
        (partial,) = (tmp_path / "staging" / "versions").glob(".*.partial")
        for path in (partial / "data" / "folder").iterdir():
            path.unlink()
        (partial / "data" / "folder").rmdir()
        (partial / "data" / "folder").symlink_to(tmp_path)
        report = transfer_dataset(store, tmp_path / "staging")
        assert_published(tmp_path / "staging", report, contents)
        assert [path.name for path in tmp_path.iterdir()] == ["staging"]


class TestBytes:
    @pytest.mark.parametrize("reported", ["md5", "crc64nvme", "crc32", "sha256", "sha1"])
    def test_a_corrupt_object_is_requested_again(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, reported: str
    ) -> None:
        content = os.urandom(10_000)
        s3.put("data/key", content, etag=None if reported == "md5" else "0-1", **checksum_header(reported, content))
        s3.fail("data/key", flipped, times=2)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, {"key": content})
        assert (report.unverified, len(s3.gets("data/key"))) == (0, 3)
        assert json.loads((tmp_path / "versions" / report.digest / "manifest.jsonl").read_text().splitlines()[1])[
            "checksum"
        ].startswith(f"{reported}:")

    def test_an_object_that_stays_corrupt_is_named_and_does_not_stop_the_others(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        put(s3, 30)
        s3.fail("data/folder/7", flipped, times=99)
        with pytest.raises(StoreError, match="'folder/7' arrived corrupt 3 times"):
            transfer_dataset(store, tmp_path)
        assert_nothing_published(tmp_path)
        (data,) = (tmp_path / "versions").glob(".*.partial/data")
        assert len(files_below(data)) == 29
        assert not (data / "folder" / "7").exists()

    def test_an_object_without_a_checksum_is_checked_by_size_and_reported(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        s3.put("data/key", b"content", etag="0123-2")
        report = transfer_dataset(store, tmp_path)
        assert report.unverified == 1
        assert_published(tmp_path, report, {"key": b"content"})

    @pytest.mark.parametrize("checksum", ["AAAAAA==-2", "AAAAAA=="])
    def test_a_composite_checksum_is_not_used(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, checksum: str
    ) -> None:
        s3.put("data/key", b"content", etag="0123-2", x_amz_checksum_crc32=checksum, x_amz_checksum_type="COMPOSITE")
        assert transfer_dataset(store, tmp_path).unverified == 1

    @pytest.mark.parametrize(
        ("encryption", "unverified"), [("aws:kms", 1), ("aws:kms:dsse", 1), ("aws:fsx", 1), ("AES256", 0)]
    )
    def test_the_etag_of_an_object_that_is_encrypted_with_a_key_is_not_used_as_md5(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, encryption: str, unverified: int
    ) -> None:
        etag = MADE_UP if unverified else None
        s3.put("data/key", b"content", etag=etag, x_amz_server_side_encryption=encryption)
        assert transfer_dataset(store, tmp_path).unverified == unverified
        assert len(s3.gets("data/key")) == 1

    def test_the_etag_of_an_object_encrypted_with_a_key_of_the_customer_is_not_used_as_md5(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        header = {"x_amz_server_side_encryption_customer_algorithm": "AES256"}
        s3.put("data/key", b"content", etag=MADE_UP, **header)
        assert transfer_dataset(store, tmp_path).unverified == 1
        assert len(s3.gets("data/key")) == 1

    def test_a_truncated_response_is_resumed_where_it_ended(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        content = os.urandom(3_000_000)
        s3.put("data/key", content)
        s3.fail("data/key", cut_short(1_000_000))
        assert_published(tmp_path, transfer_dataset(store, tmp_path), {"key": content})
        first, second = s3.gets("data/key")
        assert 0 < int(second.rpartition("bytes=")[2].rstrip("-")) <= 1_000_000, (first, second)
        conditions = [sent.get("if-match") for sent in s3.headers[-2:]]
        assert conditions == [f'"{hashlib.md5(content).hexdigest()}"'] * 2

    def test_a_transfer_that_is_cut_again_and_again_ends_if_bytes_arrive_each_time(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(ATTEMPTS_VARIABLE, "3")
        content = os.urandom(10_000)
        s3.put("data/key", content)
        s3.fail("data/key", cut_short(1000), times=6)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), {"key": content})
        assert len(s3.gets("data/key")) == 7

    def test_a_response_of_a_server_that_ignores_ranges_is_cut(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        content = os.urandom(300_000)
        s3.put("data/key", content)
        s3.fail("data/key", cut_short(100_000))
        s3.fail("data/key", ignores_range)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), {"key": content})

    @pytest.mark.parametrize("status", [200, 206])
    @pytest.mark.parametrize(("first", "end", "is_right"), [(2, 5, True), (2, 4, True), (2, 6, False), (1, 5, False)])
    def test_of_a_range_only_its_bytes_or_their_beginning_are_accepted(
        self, s3: FaultyS3, store: ObjectStore, status: int, first: int, end: int, is_right: bool
    ) -> None:
        """Some servers send a range with status 200."""
        content = b"0123456789"
        s3.put("data/key", content)
        (listed,) = store.list()

        def send(handler: Handler, stored: Stored) -> bool:
            span = f"bytes {first}-{end - 1}/{len(content)}"
            handler.answer(status, content[first:end], {**stored.validators, "Content-Range": span})
            return True

        s3.fail("data/key", send)
        if is_right:
            assert store.read("key", listed.etag, 2, 5).read() == content[first:end]
        else:
            with pytest.raises(StoreError, match="instead of 2-4"):
                store.read("key", listed.etag, 2, 5)

    def test_a_part_that_does_not_say_which_one_it_is_is_refused(self, s3: FaultyS3, store: ObjectStore) -> None:
        s3.put("data/key", b"0123456789")
        (listed,) = store.list()

        def send(handler: Handler, stored: Stored) -> bool:
            handler.answer(206, stored.content[2:5], stored.validators)
            return True

        s3.fail("data/key", send)
        with pytest.raises(StoreError, match="has the bytes '' instead of 2-4"):
            store.read("key", listed.etag, 2, 5)

    @pytest.mark.parametrize("fault", [early_hints, surplus, until_closed])
    def test_answers_that_follow_one_another_are_not_mixed_up(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, fault: Fault
    ) -> None:
        contents = put(s3, 8)
        for stored in s3.objects.values():
            stored.etag = "same-1"
        s3.fail("*", fault, times=8)
        assert_published(tmp_path, transfer_dataset(store, tmp_path, concurrency=1), contents)

    def test_an_object_larger_than_listed_is_refused(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path) -> None:
        s3.put("data/key", b"content")
        s3.objects["data/key"].listed_size = 3
        with pytest.raises(StoreError, match="'key' has more than the 3 bytes"):
            transfer_dataset(store, tmp_path)
        assert_nothing_published(tmp_path)

    @pytest.mark.parametrize("respects_conditions", [True, False])
    def test_an_object_replaced_during_the_sync_is_listed_again(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, respects_conditions: bool
    ) -> None:
        contents = put(s3)
        another = os.urandom(1000)

        def replaced_and_sent(handler: Handler, stored: Stored) -> bool:
            replaced("data/folder/3", another)(handler, stored)
            return ignores_range(handler, s3.objects["data/folder/3"])

        s3.fail("data/folder/3", replaced("data/folder/3", another) if respects_conditions else replaced_and_sent)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, {**contents, "folder/3": another})
        assert len([each for each in s3.requests if "list-type" in each]) == 2


class TestMadeUpEtags:
    """Some servers send ETags that look like MD5s but are not."""

    def test_bytes_that_arrive_twice_count_as_unverified(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        contents = put(s3, 3)
        make_up_etags(s3)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, contents)
        assert (report.downloaded, report.unverified) == (3, 3)
        assert {key: len(s3.gets(f"data/{key}")) for key in contents} == dict.fromkeys(contents, 2)
        s3.put("data/folder/9", b"more", etag=MADE_UP)
        report = transfer_dataset(store, tmp_path)
        assert (report.linked, report.downloaded, report.unverified) == (3, 1, 1)

    def test_an_object_that_was_published_before_is_damaged_if_the_etags_of_new_ones_are_md5s(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        s3.put("data/old", b"wrong", etag=hashlib.md5(b"right").hexdigest())
        first = transfer_dataset(store, tmp_path)
        contents = put(s3, 2)
        for _ in range(2):
            with pytest.raises(StoreError, match=r"damaged in the store \(1: 'old'\)"):
                transfer_dataset(store, tmp_path)
        assert_published(tmp_path, first, {"old": b"wrong"})
        s3.put("data/old", b"right")
        second = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, second, {"old": b"right"} | contents)
        assert (second.linked, second.resumed, second.downloaded) == (0, 2, 1)
        assert not (tmp_path / "versions" / second.digest / "damaged").exists()

    @pytest.mark.parametrize("others", [1, 9])
    def test_an_object_is_damaged_if_the_etags_of_objects_with_another_checksum_are_md5s(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, others: int
    ) -> None:
        for number in range(others):
            s3.put(f"data/{number}", b"content", **checksum_header("crc64nvme", b"content"))
        s3.put("data/wrong", b"wrong", etag=hashlib.md5(b"right").hexdigest())
        for _ in range(2):
            with pytest.raises(StoreError, match=r"damaged in the store \(1: 'wrong'\)"):
                transfer_dataset(store, tmp_path)
            assert_nothing_published(tmp_path)

    def test_empty_objects_and_made_up_etags_of_objects_with_another_checksum_show_nothing(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        s3.put("data/empty", b"", **checksum_header("crc64nvme", b""))
        s3.put("data/other", b"content", etag=MADE_UP, **checksum_header("crc64nvme", b"content"))
        s3.put("data/doubtful", b"more", etag=MADE_UP[::-1])
        assert transfer_dataset(store, tmp_path).unverified == 1

    def test_a_verified_object_is_not_damaged_though_its_etag_is_no_md5(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        header = base64.b64encode(hashlib.md5(b"content").digest()).decode()
        s3.put("data/encrypted", b"content", etag=MADE_UP, x_amz_checksum_md5=header)
        transfer_dataset(store, tmp_path)
        contents = put(s3, 2)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, {"encrypted": b"content"} | contents)
        assert (report.linked, report.unverified) == (1, 0)

    def test_a_large_object_arrives_in_parts_and_then_as_a_whole(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(fetch, "PART_BYTES", 100_000)
        monkeypatch.setattr(fetch, "LARGE_BYTES", 200_000)
        content = os.urandom(300_000)
        s3.put("data/large", content, etag=MADE_UP)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, {"large": content})
        assert (report.unverified, len(s3.gets("data/large"))) == (1, 3 + 1)

    @pytest.mark.parametrize("faults", [[flipped] * 9, [flipped, flipped, cut_short(100), flipped]])
    def test_bytes_that_differ_each_time_are_refused(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, faults: list[Fault]
    ) -> None:
        put(s3, 1)
        make_up_etags(s3)
        for fault in faults:
            s3.fail("data/folder/0", fault)
        with pytest.raises(StoreError, match="'folder/0' arrived corrupt 3 times"):
            transfer_dataset(store, tmp_path)
        assert_nothing_published(tmp_path)

    def test_a_transfer_with_an_error_between_two_good_ones_is_made_again(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        contents = put(s3, 1)
        make_up_etags(s3)
        s3.fail("data/folder/0", flipped)
        s3.fail("data/folder/0", cut_short(100))
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)

    @pytest.mark.parametrize("algorithm", ["crc64nvme", "md5"])
    def test_a_checksum_in_a_header_counts_more_than_two_transfers(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, algorithm: str
    ) -> None:
        digest = hashlib.md5(b"content").digest()
        header = checksum_header(algorithm, b"content") or {"x_amz_checksum_md5": base64.b64encode(digest).decode()}
        s3.put("data/key", b"content", **header)
        s3.fail("data/key", damaged, times=99)
        with pytest.raises(StoreError, match="'key' arrived corrupt 3 times"):
            transfer_dataset(store, tmp_path)

    @pytest.mark.parametrize("damaged_key", [0, 29])
    def test_an_object_that_the_store_damaged_is_refused_because_the_etags_of_others_are_md5s(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, damaged_key: int
    ) -> None:
        contents = put(s3, 30)
        key = f"folder/{damaged_key}"
        s3.fail(f"data/{key}", damaged, times=4)
        for _ in range(2):
            with pytest.raises(StoreError, match=rf"damaged in the store \(1: '{key}'\)"):
                transfer_dataset(store, tmp_path)
            assert_nothing_published(tmp_path)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, contents)
        assert (report.resumed, report.downloaded, report.unverified) == (29, 1, 0)

    def test_an_object_that_was_damaged_since_the_last_version_is_refused(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        put(s3, 3)
        transfer_dataset(store, tmp_path)
        s3.put("data/new", b"content")
        s3.fail("data/new", damaged, times=99)
        with pytest.raises(StoreError, match=r"damaged in the store \(1: 'new'\)"):
            transfer_dataset(store, tmp_path)

    def test_an_interrupted_sync_of_such_objects_resumes(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        contents = put(s3, 3)
        make_up_etags(s3)
        s3.fail("data/folder/2", refused(403, "AccessDenied"))
        with pytest.raises(StoreError, match="AccessDenied"):
            transfer_dataset(store, tmp_path)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, contents)
        assert (report.resumed, report.downloaded) == (2, 1)


MADE_UP = "0123456789abcdef" * 2


def make_up_etags(s3: FaultyS3) -> None:
    for number, stored in enumerate(s3.objects.values(), start=1):
        stored.etag = f"{number:032x}"[::-1]


def checksum_header(algorithm: str, content: bytes) -> dict[str, str]:
    digests = {
        "crc64nvme": crc64nvme(content).to_bytes(8, "big"),
        "crc32": zlib.crc32(content).to_bytes(4, "big"),
        "sha256": hashlib.sha256(content).digest(),
        "sha1": hashlib.sha1(content).digest(),
    }
    if algorithm == "md5":
        return {}
    return {f"x_amz_checksum_{algorithm}": base64.b64encode(digests[algorithm]).decode()}


class TestLargeObjects:
    @pytest.fixture(autouse=True)
    def small_parts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fetch, "PART_BYTES", 100_000)
        monkeypatch.setattr(fetch, "LARGE_BYTES", 200_000)

    @pytest.mark.parametrize("reported", ["md5", "crc64nvme", "crc32", "sha256", "nothing"])
    def test_it_arrives_in_parts_and_is_verified_as_a_whole(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, reported: str
    ) -> None:
        content = os.urandom(1_234_567)
        header = {} if reported == "nothing" else checksum_header(reported, content)
        s3.put("data/large", content, etag=None if reported == "md5" else "0-1", **header)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, {"large": content})
        assert report.unverified == (reported == "nothing")
        assert len(s3.gets("data/large")) == 13

    def test_a_corrupt_part_makes_the_object_download_again(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        content = os.urandom(500_000)
        s3.put("data/large", content)
        s3.fail("data/large", flipped)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), {"large": content})
        assert len(s3.gets("data/large")) == 6, "five parts, and the whole"

    def test_a_cache_that_answers_every_range_with_the_first_one_is_named(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        s3.put("data/large", os.urandom(500_000), etag="0123-5")
        s3.fail("data/large", first_slice, times=99)
        with pytest.raises(StoreError, match=r"has the bytes 'bytes 0-99999/500000' instead of \d00000-.*a cache"):
            transfer_dataset(store, tmp_path)
        assert_nothing_published(tmp_path)

    def test_after_an_interruption_only_missing_parts_are_downloaded(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        content = os.urandom(500_000)
        s3.put("data/large", content)
        s3.fail("data/large", cut_short(0), times=6)
        with pytest.raises(StoreError):
            transfer_dataset(store, tmp_path, concurrency=1)
        there = {each.rpartition("bytes=")[2] for each in s3.gets("data/large")[6:]}
        s3.requests.clear()
        assert_published(tmp_path, transfer_dataset(store, tmp_path, concurrency=1), {"large": content})
        again = {each.rpartition("bytes=")[2] for each in s3.gets("data/large")}
        assert len(there) == 4
        assert again == {"0-99999"}

    def test_a_part_damaged_since_then_is_downloaded_again(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        content = os.urandom(500_000)
        s3.put("data/large", content)
        s3.fail("data/large", cut_short(0), times=6)
        with pytest.raises(StoreError):
            transfer_dataset(store, tmp_path, concurrency=1)
        (file,) = (tmp_path / "versions").glob(".*.partial/large/*")
        with file.open("r+b") as torn:
            torn.seek(250_000)
            torn.write(b"torn")
        s3.requests.clear()
        assert_published(tmp_path, transfer_dataset(store, tmp_path, concurrency=1), {"large": content})
        again = {each.rpartition("bytes=")[2] for each in s3.gets("data/large")}
        assert again == {"0-99999", "200000-299999"}


class TestServer:
    def test_a_sync_survives_a_burst_of_slow_down(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv(ATTEMPTS_VARIABLE)
        contents = put(s3, 50)
        first: list[float] = []

        def refused_for_a_second(handler: Handler, stored: Stored) -> bool:
            first.append(time.monotonic())
            return time.monotonic() - first[0] < 1 and refused(503, "SlowDown")(handler, stored)

        s3.fail("*", refused_for_a_second, times=10**5)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)

    def test_retries_of_a_small_object_outlast_faults(self, s3: FaultyS3, store: ObjectStore) -> None:
        s3.put("data/latest.json", b"{}")
        s3.fail("data/latest.json", refused(503, "SlowDown"))
        s3.fail("data/latest.json", cut_short(0))
        assert with_retries(lambda: store.read("latest.json").read()) == b"{}"

    @pytest.mark.parametrize(
        ("status", "code"),
        [
            (503, "SlowDownRead"),
            (503, "XMinioServerNotInitialized"),
            (500, "UnknownCode"),
            (502, ""),
            (504, "GatewayTimeout"),
            (429, "RateLimitExceeded"),
            (408, ""),
            (400, "RequestTimeout"),
            (400, "Throttling"),
        ],
    )
    def test_what_every_client_tries_again_is_tried_again(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, status: int, code: str
    ) -> None:
        contents = put(s3)
        for key in ("list", "data/folder/2"):
            s3.fail(key, refused(status, code), times=3)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)

    def test_a_server_is_left_alone_for_as_long_as_it_asks(self, s3: FaultyS3, store: ObjectStore) -> None:
        s3.put("data/latest.json", b"{}")
        s3.fail("data/latest.json", refused(503, "SlowDown", {"Retry-After": "1"}))
        started = time.monotonic()
        assert with_retries(lambda: store.read("latest.json").read()) == b"{}"
        assert time.monotonic() - started >= 1

    def test_a_server_that_never_answered_is_given_up_soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(ATTEMPTS_VARIABLE)
        with pytest.raises(StoreError, match=r"cannot reach S3 at http://127.0.0.1:9"):
            list(open_store("s3://bucket/data", "http://127.0.0.1:9", Access.ANONYMOUS).list())

    def test_a_clock_that_is_wrong_is_named(self, s3: FaultyS3, store: ObjectStore) -> None:
        s3.fail("list", refused(403, "RequestTimeTooSkewed"))
        with pytest.raises(AccessRefused, match=r"there another time\): set the clock"):
            list(store.list())

    def test_archived_objects_are_counted(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path) -> None:
        put(s3, 40)
        for stored in s3.objects.values():
            stored.storage_class = "GLACIER"
        s3.fail("*", refused(403, "InvalidObjectState"), times=999)
        with pytest.raises(StoreError, match=r"one of 40 in GLACIER or DEEP_ARCHIVE, is archived.*restore-object"):
            transfer_dataset(store, tmp_path)

    @pytest.mark.parametrize("status", [500, 502, 503])
    def test_a_listing_that_fails_is_retried(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, status: int
    ) -> None:
        contents = put(s3)
        s3.fail("list", refused(status, ""), times=2)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)

    def test_a_request_without_a_response_is_retried(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(connect, "READ_TIMEOUT_SECONDS", 0.3)
        contents = put(s3)
        s3.fail("data/folder/2", silent)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)

    def test_a_sync_soon_fails_if_the_store_is_down(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path) -> None:
        put(s3, 200)
        s3.fail("*", refused(500, "InternalError"), times=10**6)
        with pytest.raises(StoreError, match="rejected a request for object"):
            transfer_dataset(store, tmp_path, concurrency=4)
        assert len(s3.requests) < 100

    @pytest.mark.parametrize("code", ["ExpiredToken", "InvalidAccessKeyId", "SignatureDoesNotMatch"])
    def test_rejected_credentials_end_the_sync_at_once(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path, code: str
    ) -> None:
        put(s3, 200)
        s3.fail("*", refused(403, code), times=10**6)
        with pytest.raises(AccessRefused, match=code):
            transfer_dataset(store, tmp_path)
        assert len(s3.requests) < 1 + 2 * 64

    def test_credentials_that_expire_early_are_obtained_again(
        self, s3: FaultyS3, url: str, s3_credentials: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        def expired(handler: Handler, _: object) -> bool:
            is_old = "Credential=kubetrain/" in handler.headers["Authorization"]
            if is_old:
                handler.error(400, "ExpiredToken")
            return is_old

        contents = put(s3)
        store = open_store("s3://bucket/data", url)
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "renewed")
        s3.fail("list", expired)
        s3.fail("*", expired, times=99)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)

    def test_an_object_that_another_server_has_is_read_there(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        other = FaultyS3()
        contents = put(s3)
        other.objects = dict(s3.objects)
        with other.serving() as elsewhere:

            def sent_on(handler: Handler, _: object) -> bool:
                handler.answer(307, b"", {"Location": elsewhere + handler.path})
                return True

            s3.fail("data/folder/2", sent_on)
            assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)
        assert other.gets("data/folder/2")

    def test_an_endless_error_is_not_read_to_its_end(self, s3: FaultyS3, store: ObjectStore) -> None:
        def endless(handler: Handler, _: object) -> bool:
            handler.send_response(403)
            handler.end_headers()
            with contextlib.suppress(OSError):
                while not handler.store.is_over.is_set():
                    handler.wfile.write(bytes(1 << 16))
            return True

        s3.put("data/key", b"x")
        s3.fail("data/key", endless)
        with pytest.raises(StoreError, match="403"):
            store.read("key").read()

    def test_an_object_without_permission_is_named_and_does_not_stop_the_others(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        put(s3, 30)
        s3.fail("data/folder/4", refused(403, "AccessDenied"), times=99)
        with pytest.raises(StoreError, match="access to object 'folder/4' of s3://bucket/data was denied"):
            transfer_dataset(store, tmp_path)
        assert len(s3.gets("data/folder/4")) >= 1
        (data,) = (tmp_path / "versions").glob(".*.partial/data")
        assert len(files_below(data)) == 29

    def test_many_bad_objects_among_good_ones_do_not_stop_a_sync(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        contents = put(s3, 209)
        bad = sorted(contents)[::25]
        for key in bad:
            s3.fail(f"data/{key}", refused(403, "AccessDenied"))
        assert len(bad) > fetch.MAX_FAILURES_IN_A_ROW
        with pytest.raises(StoreError, match=f"^{len(bad)} objects could not be downloaded: access to .*{bad[0]}"):
            transfer_dataset(store, tmp_path, concurrency=1)
        report = transfer_dataset(store, tmp_path)
        assert_published(tmp_path, report, contents)
        assert (report.resumed, report.downloaded) == (200, 9)

    def test_a_bucket_in_another_region_is_found(
        self, s3: FaultyS3, url: str, s3_credentials: None, tmp_path: Path
    ) -> None:
        def elsewhere(handler: object, _: object) -> bool:
            handler.answer(301, b"<Error><Code>PermanentRedirect</Code></Error>", {"x-amz-bucket-region": "eu-west-9"})  # type: ignore[attr-defined]
            return True

        contents = put(s3)
        s3.fail("list", elsewhere)
        store = open_store("s3://bucket/data", url)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)
        assert "/eu-west-9/s3/aws4_request" in s3.headers[-1]["authorization"]

    def test_a_dataset_larger_than_the_volume_is_refused_before_any_download(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        s3.put("data/huge", b"x")
        s3.objects["data/huge"].listed_size = 10**18
        with pytest.raises(KubetrainError, match="bytes free, but the download needs 1,000,000,000,000,000,000"):
            transfer_dataset(store, tmp_path)
        assert s3.gets("data/huge") == []

    @pytest.mark.parametrize("prefix", ["dat", "data/fold", "nothing"])
    def test_a_mistyped_prefix_syncs_nothing(self, s3: FaultyS3, url: str, tmp_path: Path, prefix: str) -> None:
        put(s3)
        with pytest.raises(KubetrainError, match=f"no objects under s3://bucket/{prefix}"):
            transfer_dataset(open_store(f"s3://bucket/{prefix}", url, Access.ANONYMOUS), tmp_path)

    def test_an_unchanged_prefix_costs_one_listing(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path) -> None:
        put(s3)
        transfer_dataset(store, tmp_path)
        s3.requests.clear()
        report = transfer_dataset(store, tmp_path)
        assert (report.downloaded, len(s3.requests)) == (0, 1)

    def test_latency_is_hidden_by_parallel_requests(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path) -> None:
        put(s3, 300, size=10)
        s3.latency = 0.3
        transfer_dataset(store, tmp_path)
        assert s3.most_at_once > MIN_REQUESTS


class TestConnections:
    def test_credentials_are_renewed_during_a_sync(
        self, s3: FaultyS3, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        issue = tmp_path / "issue.py"
        issue.write_text(
            "import datetime, json, pathlib\n"
            f"count = pathlib.Path({str(tmp_path / 'count')!r})\n"
            "number = int(count.read_text()) + 1 if count.exists() else 1\n"
            "count.write_text(str(number))\n"
            "soon = datetime.datetime.now(datetime.UTC) + datetime.timedelta(minutes=5 if number == 1 else 60)\n"
            "print(json.dumps({'Version': 1, 'AccessKeyId': f'key-{number}', 'SecretAccessKey': 'secret',\n"
            "                  'SessionToken': f'token-{number}', 'Expiration': soon.isoformat()}))\n"
        )
        (tmp_path / "config").write_text(f"[profile short]\ncredential_process = {sys.executable} {issue}\n")
        monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "config"))
        monkeypatch.setenv("AWS_PROFILE", "short")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name, raising=False)
        contents = put(s3)
        report = transfer_dataset(open_store("s3://bucket/data", url), tmp_path / "staging")
        assert_published(tmp_path / "staging", report, contents)
        assert "Credential=key-2/" in s3.headers[-1]["authorization"]
        assert s3.headers[-1]["x-amz-security-token"] == "token-2"

    def test_anonymous_requests_are_not_signed(self, s3: FaultyS3, store: ObjectStore, tmp_path: Path) -> None:
        put(s3)
        transfer_dataset(store, tmp_path)
        assert not any("authorization" in sent for sent in s3.headers)

    def test_a_proxy_gets_the_whole_url(
        self, s3: FaultyS3, url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        contents = put(s3)
        monkeypatch.setenv("http_proxy", url.replace("http://", "http://user:pass%21@"))
        monkeypatch.delenv("NO_PROXY", raising=False)
        monkeypatch.delenv("no_proxy", raising=False)
        store = open_store("s3://bucket/data", "http://s3.nowhere.invalid:9000", Access.ANONYMOUS)
        assert_published(tmp_path, transfer_dataset(store, tmp_path), contents)
        assert s3.requests[-1].startswith(f"GET http://s3.nowhere.invalid:9000/bucket/{quote('data/folder/')}")
        assert s3.headers[-1]["proxy-authorization"] == "Basic " + base64.b64encode(b"user:pass!").decode()
