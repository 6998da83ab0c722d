"""Versions of a dataset whose shards stay in the store."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.object_store.store import ObjectChanged
from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import plan_pack
from kubetrain_components.sync_dataset.publish import read_version
from kubetrain_components.sync_dataset.shards_in_store import ShardsInStore
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_components.sync_dataset.verify import verify_version
from kubetrain_trainer.data.shard_cache import STORED_SHARDS, VARIABLE, read_stored_shards
from kubetrain_trainer.data.tar_shards import list_images
from kubetrain_trainer.errors import KubetrainError

CACHE_BYTES = 1_000_000


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    for split in ("train", "val"):
        for number in range(20):
            image = tmp_path / "images" / split / str(number % 2) / f"{number}.png"
            image.parent.mkdir(parents=True, exist_ok=True)
            image.write_bytes(bytes([number]) * 100)
    write_pack(plan_pack(tmp_path / "images", tmp_path / "packed", 10_000))
    return tmp_path / "packed"


def synced(packed: Path, cache_bytes: int = CACHE_BYTES) -> Path:
    """Return the data of a version."""
    staging = packed.parent / "staging"
    report = transfer_dataset(ShardsInStore(DirectoryStore(packed), cache_bytes), staging)
    version = read_version(staging / "versions" / report.digest)
    assert version and verify_version(version) == []
    return version.data


def test_the_version_lists_the_shards_and_has_the_rest(packed: Path) -> None:
    data = synced(packed)
    expected = {path.relative_to(packed).as_posix() for path in packed.rglob("*") if path.is_file()}
    shards = {name for name in expected if name.endswith(".tar")}
    assert len(shards) > 4
    assert {path.relative_to(data).as_posix() for path in data.rglob("*") if path.is_file()} == {
        STORED_SHARDS,
        *expected - shards,
    }
    stored = read_stored_shards(data)
    assert stored.keys() == shards
    assert all(shard.size == (packed / key).stat().st_size for key, shard in stored.items())


@pytest.mark.parametrize("lost", ["files", "sha256"])
def test_a_manifest_that_lacks_something_is_not_one_of_a_pack(packed: Path, lost: str) -> None:
    manifest = packed / "manifest.json"
    manifest.write_text(manifest.read_text().replace(f'"{lost}"', '"lost"'))
    with pytest.raises(KubetrainError, match=r"has no manifest.json of `kubetrain pack`"):
        synced(packed)


def test_it_is_another_version_than_one_with_the_shards_and_than_one_with_others(packed: Path) -> None:
    whole = transfer_dataset(DirectoryStore(packed), packed.parent / "staging")
    first = synced(packed)
    assert synced(packed) == first
    shard = next(packed.rglob("*.tar"))
    shard.write_bytes(shard.read_bytes())  # with another time of change
    assert len({whole.digest, first.parent.name, synced(packed).parent.name}) == 3


def test_samples_are_listed_from_the_indexes_alone(packed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, "/cache")
    listed, whole = list_images(synced(packed), "train"), list_images(packed, "train")
    assert listed.index == whole.index
    assert listed.starts == whole.starts
    monkeypatch.delenv(VARIABLE)
    with pytest.raises(KubetrainError, match="the shards of this dataset version are still in S3"):
        list_images(synced(packed), "train")


def test_an_object_that_changes_while_it_is_listed_is_listed_again(packed: Path) -> None:
    store = ShardsInStore(DirectoryStore(packed), CACHE_BYTES)
    before = {each.key: each.etag for each in store.list()}
    shard = next(packed.rglob("*.tar"))
    shard.write_bytes(shard.read_bytes())
    assert store.read(STORED_SHARDS, before[STORED_SHARDS]).read()
    list(store.list())
    with pytest.raises(ObjectChanged):
        store.read(STORED_SHARDS, before[STORED_SHARDS])


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda packed: next(packed.glob("train/*.tar")).unlink(), "lacks train/train-"),
        (lambda packed: next(packed.glob("train/*.tar")).write_bytes(b"x"), "lacks train/train-"),
        (lambda packed: next(packed.glob("val/*.json")).unlink(), "lacks val/val-"),
        (lambda packed: (packed / "manifest.json").unlink(), "has no manifest.json of `kubetrain pack`"),
        (lambda packed: (packed / "manifest.json").write_text("no JSON"), "has no manifest.json of `kubetrain pack`"),
        (lambda packed: (packed / "manifest.json").write_text(json.dumps({"files": []})), "has no manifest.json"),
    ],
    ids=["no-shard", "another-size", "no-index", "no-manifest", "damaged-manifest", "another-manifest"],
)
def test_what_cannot_be_read_through_a_cache_is_refused(packed: Path, damage: Any, message: str) -> None:
    damage(packed)
    with pytest.raises(KubetrainError, match=message):
        synced(packed)


def test_a_cache_that_is_too_small_is_refused(packed: Path) -> None:
    largest = max(path.stat().st_size for path in packed.rglob("*.tar"))
    assert synced(packed, 16 * largest)
    with pytest.raises(KubetrainError, match=r"cache_gb must be at least 0.000\d+, 16 times the largest shard"):
        synced(packed, 16 * largest - 1)
