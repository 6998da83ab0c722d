"""Servers that cannot hold models as they should say so before a training."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.probe_writes import probe_writes
from kubetrain_components.object_store.store import ObjectStore, StoreError
from support.faulty_s3 import FaultyS3, ignores_conditions, refused, refuses_checksums


@pytest.fixture
def s3() -> FaultyS3:
    return FaultyS3()


@pytest.fixture
def store(s3: FaultyS3, s3_credentials: None) -> Iterator[ObjectStore]:
    with s3.serving() as url:
        yield open_store("s3://bucket/models", url)


@pytest.mark.parametrize("ignored", [["If-None-Match"], ["If-Match"], ["If-None-Match", "If-Match"]])
def test_a_server_that_ignores_conditions_is_reported(s3: FaultyS3, store: ObjectStore, ignored: list[str]) -> None:
    s3.fail("put", ignores_conditions(*ignored), times=9)
    assert f"s3://bucket/models ignores {' and '.join(ignored)} of writes" in probe_writes(store)
    assert s3.objects == {}


def test_a_server_that_refuses_conditions_cannot_be_used(s3: FaultyS3, store: ObjectStore) -> None:
    s3.fail("put", refused(501, "NotImplemented"), times=9)
    with pytest.raises(StoreError, match="NotImplemented"):
        probe_writes(store)
    assert [each for each in s3.requests if each.startswith("DELETE")], "it may have been written after all"


def test_a_server_that_does_not_know_checksum_headers_can_be_used(
    s3: FaultyS3, store: ObjectStore, tmp_path: Path
) -> None:
    s3.fail("put", refuses_checksums, times=99)
    assert probe_writes(store) == ""
    (tmp_path / "file").write_bytes(b"content")
    store.write("file", tmp_path / "file")
    assert s3.objects["models/file"].content == b"content"
    assert len([each for each in s3.requests if each.startswith("PUT")]) == 6, "checksums were tried once"


def test_another_refusal_is_reported_as_it_is(s3: FaultyS3, store: ObjectStore) -> None:
    s3.fail("put", refused(400, "EntityTooLarge"), times=2)
    with pytest.raises(StoreError, match="EntityTooLarge"):
        store.write("file", b"content")
    s3.fail("put", refuses_checksums, times=99)
    store.write("file", b"content")
    assert list(s3.objects) == ["models/file"]
