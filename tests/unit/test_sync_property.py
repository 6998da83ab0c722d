"""For any objects and any faults, a published version is complete, verified and equal to its source."""

import base64
import hashlib
import os
import shutil
import tempfile
import zlib
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubetrain_components.object_store import retries
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import Access, ObjectStore
from kubetrain_components.sync_dataset import fetch, sorted_records
from kubetrain_components.sync_dataset.publish import published_versions
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_components.sync_dataset.verify import verify_version
from kubetrain_trainer.errors import KubetrainError
from support.faulty_s3 import Fault, FaultyS3, cut_short, flipped, ignores_range, refused

NAMES = st.sampled_from(["a", "b", "c.png", "ü", "..", "", ".", "x" * 256, "new\nline", "sp ace"])
ORDINARY = st.sampled_from(["a", "b", "c.png", "ü", "sp ace", "d%20"])
KEYS = st.lists(ORDINARY, min_size=1, max_size=3) | st.lists(NAMES, min_size=1, max_size=3)
TREES = st.dictionaries(KEYS.map("/".join), st.integers(0, 3000), max_size=8)


FAULTS = st.sampled_from(
    [flipped, cut_short(0), cut_short(700), ignores_range, refused(503, "SlowDown"), refused(403, "AccessDenied")]
)
TROUBLES = st.lists(st.tuples(st.integers(0, 7), FAULTS, st.integers(1, 5)), max_size=5)


@pytest.fixture(autouse=True, scope="module")
def quick_and_small() -> object:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.001)
        patch.setattr(retries, "MAX_BACK_OFF_SECONDS", 0.004)
        patch.setattr(fetch, "POLL_SECONDS", 0.005)
        patch.setattr(fetch, "PART_BYTES", 500)
        patch.setattr(sorted_records, "MAX_IN_MEMORY", 5)
        patch.setattr(fetch, "LARGE_BYTES", 1000)
        yield


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tree=TREES, troubles=TROUBLES, changed=TREES, torn=st.booleans())
def test_published_versions_are_complete_and_verified(
    tree: dict[str, int], troubles: list[tuple[int, Fault, int]], changed: dict[str, int], torn: bool
) -> None:
    s3 = FaultyS3()
    outside = Path(tempfile.mkdtemp())
    staging = outside / "deep" / "staging"
    try:
        with s3.serving() as url:
            store = open_store("s3://bucket/data", url, Access.ANONYMOUS)
            for round_tree in (tree, {**tree, **changed}, changed):
                s3.objects.clear()
                for key, size in round_tree.items():
                    put(s3, f"data/{key}", os.urandom(1) * size)
                for number, fault, times in troubles if round_tree else ():
                    s3.fail(f"data/{sorted(round_tree)[number % len(round_tree)]}", fault, times)
                sync_and_check(s3, store, staging)
                if torn:
                    damage_unfinished_files(staging)
        assert {path for path in outside.rglob("*") if staging not in path.parents} <= {staging.parent, staging}
    finally:
        shutil.rmtree(outside)


def put(s3: FaultyS3, key: str, content: bytes) -> None:
    """Add an object with an MD5 as its ETag, or with a CRC; without either, a change could not be detected."""
    if len(content) % 2:
        s3.put(key, content)
    else:
        checksum = base64.b64encode(zlib.crc32(content).to_bytes(4, "big")).decode()
        s3.put(key, content, etag=f"{hashlib.md5(content).hexdigest()}-2", x_amz_checksum_crc32=checksum)


def sync_and_check(s3: FaultyS3, store: ObjectStore, staging: Path) -> None:
    before = {version.path.name for version in published_versions(staging)}
    try:
        report = transfer_dataset(store, staging, concurrency=8)
    except KubetrainError:
        assert {version.path.name for version in published_versions(staging)} == before
    else:
        data = staging / "versions" / report.digest / "data"
        there = {path.relative_to(data).as_posix(): path.read_bytes() for path in data.rglob("*") if path.is_file()}
        source = {key.removeprefix("data/"): stored.content for key, stored in s3.objects.items()}
        assert there == {key: content for key, content in source.items() if content or key.rpartition("/")[2]}
    for version in published_versions(staging):
        assert verify_version(version) == []


def damage_unfinished_files(staging: Path) -> None:
    """Damage unfinished files, as a power cut can. Files linked to a published version were flushed with it."""
    for path in staging.glob("versions/.*.partial/**/*"):
        if path.is_file() and path.name != "verified.jsonl" and path.stat().st_nlink == 1:
            path.chmod(0o644)
            path.write_bytes(path.read_bytes()[:-1] + b"?")
