"""Listings that are not whole, and objects whose ETag says nothing: neither may become a wrong version."""

import itertools
import os
import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from xml.sax.saxutils import escape

import pytest

from kubetrain_components.object_store import retries
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.s3.etags import MODIFIED, condition, find_shared, is_of
from kubetrain_components.object_store.s3.http_head import Headers
from kubetrain_components.object_store.s3.listing import list_objects
from kubetrain_components.object_store.s3.listing_page import rows_of
from kubetrain_components.object_store.store import Access, ObjectChanged, ObjectStore, StoreError
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from support.faulty_s3 import Fault, FaultyS3, Handler, Stored, list_page


@pytest.fixture
def s3() -> FaultyS3:
    s3 = FaultyS3()
    s3.page_keys = 2
    for number in range(4):
        s3.put(f"data/{number}", b"x" * (number + 1))
    return s3


@pytest.fixture
def store(s3: FaultyS3, monkeypatch: pytest.MonkeyPatch) -> Iterator[ObjectStore]:
    monkeypatch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.01)
    monkeypatch.setenv(retries.ATTEMPTS_VARIABLE, "3")
    with s3.serving() as url:
        yield open_store("s3://bucket/data", url, Access.ANONYMOUS)


def without(start: bytes, end: bytes) -> Fault:
    """List without the text between these marks."""

    def changed(page: bytes) -> bytes:
        before, found, rest = page.partition(start)
        return before + rest.partition(end)[2] if found else page

    return list_page(changed)


def keys(store: ObjectStore) -> list[str]:
    return [each.key for each in store.list()]


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (without(b"<NextContinuationToken>", b"</NextContinuationToken>"), "marks it as truncated, but names no next"),
        (
            list_page(lambda page: re.sub(rb"(?<=<NextContinuationToken>)\w+", b"", page)),
            "marks it as truncated, but names no next",
        ),
        (list_page(lambda _: b"<html>Sign in</html>"), "not a listing of S3, it begins with '<html>Sign in"),
        (list_page(lambda page: page[: len(page) // 2]), "was cut after"),
        (list_page(lambda page: page.replace(b"Contents", b"s3:Contents")), "cannot be read"),
    ],
)
def test_a_listing_that_is_not_whole_is_never_published(
    s3: FaultyS3, store: ObjectStore, tmp_path: Path, fault: Fault, says: str
) -> None:
    s3.fail("list", fault, times=99)
    with pytest.raises(StoreError, match=says):
        transfer_dataset(store, tmp_path)
    assert list(tmp_path.glob("versions/*")) == []


def test_a_page_that_a_proxy_cut_once_is_requested_again(s3: FaultyS3, store: ObjectStore) -> None:
    s3.fail("list", list_page(lambda page: page[: len(page) // 2]))
    assert keys(store) == ["0", "1", "2", "3"]


def test_a_page_whose_end_is_the_end_of_the_connection_is_read(s3: FaultyS3, store: ObjectStore) -> None:
    def without_length(handler: Handler, _: Stored) -> bool:
        handler.answer_until_closed(s3.page(handler.query()))
        return True

    s3.fail("list", without_length, times=2)
    assert keys(store) == ["0", "1", "2", "3"]


def test_a_token_beside_the_mark_of_the_end_is_not_followed(s3: FaultyS3, store: ObjectStore) -> None:
    s3.page_keys = 9
    more = b"<NextContinuationToken>31</NextContinuationToken></ListBucketResult>"
    s3.fail("list", list_page(lambda page: page.replace(b"</ListBucketResult>", more)), times=99)
    assert keys(store) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("mark", [b"True", b"TRUE", b"1", b" true\n"])
def test_a_mark_of_truncation_in_another_spelling_is_believed(s3: FaultyS3, store: ObjectStore, mark: bytes) -> None:
    spelled = list_page(lambda page: page.replace(b"<IsTruncated>true", b"<IsTruncated>" + mark))
    s3.fail("list", spelled, times=99)
    assert keys(store) == ["0", "1", "2", "3"]


@pytest.mark.parametrize("with_tokens_that_change", [False, True])
def test_a_listing_that_never_ends_is_refused(s3: FaultyS3, store: ObjectStore, with_tokens_that_change: bool) -> None:
    def first_page_again(handler: Handler, _: Stored) -> bool:
        page = s3.page({"prefix": "data/"})
        if with_tokens_that_change:
            number = str(len(s3.requests)).encode()
            page = page.replace(b"<NextContinuationToken>", b"<NextContinuationToken>" + number)
        handler.answer(200, page, {})
        return True

    s3.fail("list", first_page_again, times=99)
    with pytest.raises(StoreError, match="begins again"):
        keys(store)
    assert len(s3.requests) < 5


class TestObjectsWithoutAUsableEtag:
    @pytest.fixture(params=["", "constant", "0" * 32, "d41d8cd98f00b204e9800998ecf8427e"], autouse=True)
    def etag(self, request: pytest.FixtureRequest, s3: FaultyS3) -> str:
        s3.page_keys = 9
        etag = str(request.param)
        for stored in s3.objects.values():
            stored.etag = etag
        return etag

    def replace(self, s3: FaultyS3, key: str, content: bytes) -> None:
        old = s3.objects[key]
        s3.objects[key] = Stored(content, old.etag, modified=old.modified + timedelta(seconds=2))

    def test_a_replaced_object_of_the_same_size_makes_another_version(
        self, s3: FaultyS3, store: ObjectStore, tmp_path: Path
    ) -> None:
        first = transfer_dataset(store, tmp_path)
        assert transfer_dataset(store, tmp_path).digest == first.digest
        self.replace(s3, "data/3", b"yyyy")
        second = transfer_dataset(store, tmp_path)
        assert (second.downloaded, second.unverified) == (1, 1)
        assert (tmp_path / "versions" / second.digest / "data" / "3").read_bytes() == b"yyyy"

    @pytest.mark.parametrize("respects_conditions", [True, False])
    def test_an_object_replaced_after_its_listing_has_changed(
        self, s3: FaultyS3, store: ObjectStore, respects_conditions: bool
    ) -> None:
        listed = {each.key: each for each in store.list()}
        self.replace(s3, "data/3", b"yyyy")
        if not respects_conditions:
            s3.fail("*", ignores_time, times=9)
        for start in (0, 2):
            with pytest.raises(ObjectChanged):
                store.read("3", listed["3"].etag, start).read()
        assert store.read("2", listed["2"].etag, 1).read() == b"xx"

    def test_a_server_that_does_not_send_the_time_is_named(self, s3: FaultyS3, store: ObjectStore) -> None:
        listed = next(iter(store.list()))
        assert listed.etag.startswith(MODIFIED)
        s3.objects["data/0"].headers["Last-Modified"] = ""
        with pytest.raises(StoreError, match="neither a usable ETag nor Last-Modified"):
            store.read(listed.key, listed.etag).read()


def ignores_time(handler: Handler, _: Stored) -> bool:
    del handler.headers["If-Unmodified-Since"]
    return False


@pytest.mark.parametrize(("moment", "until"), [("00:00:01.000", 2), ("00:00:01.001", 2), ("00:00:01.999", 2)])
def test_a_request_accepts_an_object_until_the_second_after_its_change(moment: str, until: int) -> None:
    header = {"if-unmodified-since": f"Thu, 01 Jan 2026 00:00:0{until} GMT"}
    assert condition(f"{MODIFIED}2026-01-01T{moment}Z") == header


@pytest.mark.parametrize("etag", ["gen1-0", "constant", ""])
def test_a_tag_that_is_not_a_hash_of_the_content_counts_only_in_its_place(tmp_path: Path, etag: str) -> None:
    servers = FaultyS3(), FaultyS3()
    for server, prefix in itertools.product(servers, ("v1", "v2")):
        for key in ("0", "1"):
            server.put(f"{prefix}/{key}", os.urandom(9), etag=f"{etag}-{key}" if etag == "gen1-0" else etag)
    with servers[0].serving() as first, servers[1].serving() as second:
        for (url, server), prefix in itertools.product(((first, servers[0]), (second, servers[1])), ("v1", "v2")):
            digest = transfer_dataset(open_store(f"s3://bucket/{prefix}", url, Access.ANONYMOUS), tmp_path).digest
            data = tmp_path / "versions" / digest / "data"
            assert {path.name: path.read_bytes() for path in data.iterdir()} == {
                key: server.objects[f"{prefix}/{key}"].content for key in ("0", "1")
            }


@pytest.mark.parametrize(("etag", "in_header"), [("a&b<c>'", None), ("t\u20acg", "tag")])
def test_an_etag_may_have_any_character(
    s3: FaultyS3, store: ObjectStore, tmp_path: Path, etag: str, in_header: str | None
) -> None:
    s3.put("data/0", b"x", etag=etag, **({"ETag": in_header} if in_header else {}))
    s3.fail("list", list_page(lambda page: page.replace(etag.encode(), escape(etag).encode())), times=9)
    assert transfer_dataset(store, tmp_path).downloaded == len(s3.objects)


def test_an_object_that_changed_a_second_later_is_another() -> None:
    for second, is_same in ((0, False), (1, True), (2, False)):
        answer = Headers(f"HTTP/1.1 200 OK\r\nLast-Modified: Thu, 01 Jan 2026 00:00:0{second} GMT\r\n")
        assert is_of(f"{MODIFIED}2026-01-01T00:00:01Z", answer) == is_same


def test_only_etags_that_contents_of_different_sizes_share_say_nothing() -> None:
    md5 = "0cc175b9c0f1b6a831c399e269772661"
    assert find_shared([md5, md5, "a-1"], ["1", "1", "2"]) == set(), "equal contents have equal MD5s"
    assert find_shared([md5, md5, "a-1"], ["1", "2", "2"]) == {md5}
    assert find_shared(["tag", "tag", md5], ["1", "1", "2"]) == set(), "the tag may come from the content"
    assert find_shared([md5] * 16, ["1"] * 16) == set()


class TestObjectsWithTheSameEtagAndSize:
    """What identifies an object does not depend on where a page ends."""

    MD5 = "0cc175b9c0f1b6a831c399e269772661"

    def identities(self, etags: list[str], page_keys: int, sizes: list[int] | None = None) -> list[str]:
        s3 = FaultyS3()
        s3.page_keys = page_keys
        for number, (etag, size) in enumerate(zip(etags, sizes or [1] * len(etags), strict=True)):
            s3.put(f"data/{number % 4}/{number:02}", b"x" * size, etag=etag)
        found = sorted(list_objects(s3.page, "data/", 4), key=lambda each: each.key[-2:])
        return [each.etag.partition(":")[0] for each in found]

    @pytest.mark.parametrize("page_keys", [1, 2, 3, 99])
    def test_the_tag_stays_if_other_objects_have_others(self, page_keys: int) -> None:
        assert self.identities(["tag", "tag", "tag", "other"], page_keys) == ["tag", "tag", "tag", "other"]

    @pytest.mark.parametrize("page_keys", [1, 2, 3, 99])
    def test_a_tag_that_all_objects_have_says_nothing(self, page_keys: int) -> None:
        assert self.identities(["tag"] * 40, page_keys) == ["modified"] * 40
        assert self.identities(["tag"] * 40, page_keys, [1] * 36 + [2, 3, 4, 5]) == ["modified"] * 40

    @pytest.mark.parametrize("page_keys", [1, 7, 99])
    def test_an_md5_or_the_tag_of_a_single_object_stays(self, page_keys: int) -> None:
        assert self.identities([self.MD5] * 40, page_keys) == [self.MD5] * 40
        assert self.identities(["tag"], page_keys) == ["tag"]

    def test_ranges_know_the_constants_of_the_first_pages(self) -> None:
        sizes = [number + 1 if number % 4 == 0 else 1 for number in range(80)]
        assert self.identities([self.MD5] * 80, 2, sizes) == ["modified"] * 80


def test_an_etag_that_a_proxy_made_weak_is_the_same(s3: FaultyS3, store: ObjectStore) -> None:
    s3.objects["data/0"].headers["ETag"] = f'W/"{s3.objects["data/0"].etag}"'
    listed = next(iter(store.list()))
    assert store.read("0", listed.etag).read() == b"x"
    page = "<Contents><Key>k</Key><LastModified>2026-01-01T00:00:00Z</LastModified><ETag>W/&quot;e&quot;</ETag>"
    assert rows_of(f"{page}<Size>1</Size></Contents>", "", set())[0].etag == "e"
