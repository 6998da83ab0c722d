"""The page that says what a sync brought and how pods read it."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_components.sync_dataset.report import SyncReport
from kubetrain_components.sync_dataset.summary import dataset_summary

DIGEST = "d" * 16


def page(place: DatasetPlace, source: str = "s3://b/d", **counts: Any) -> str:
    report = SyncReport(
        digest=DIGEST, source=source, objects=1800, bytes=2_000_000, folders=[], folders_cut=False, **counts
    )
    return dataset_summary(asdict(report), place, Path("/data"))


def test_it_says_what_was_brought_and_how_it_was_verified() -> None:
    text = page(DatasetPlace(digest=DIGEST), downloaded=1700, downloaded_bytes=1_900_000, unverified=20, seconds=65.2)
    assert "| source | `s3://b/d` |" in text
    assert f"| version | `{DIGEST}` |" in text
    assert "| objects | 1,800, 2,000,000 bytes |" in text
    assert "| downloaded | 1,700 in 1 min 05 s, 1,900,000 bytes |" in text
    assert "| verified by checksum | 1,680 |" in text
    assert "| verified by size only | 20, because the store has no usable checksums" in text
    assert "| verified by earlier syncs | 100 |" in text


def test_it_says_how_pods_read_the_version() -> None:
    place = DatasetPlace(digest=DIGEST, claim="ds-1", sub_path=f"versions/{DIGEST}/data")
    assert f"| training reads | `/data`, read-only, from folder `versions/{DIGEST}/data` of PVC `ds-1` |" in page(place)
    assert "| training reads | `/data` |" in page(DatasetPlace(digest=DIGEST))
    assert "from the store, through a cache" in page(DatasetPlace(digest=DIGEST, shards={"uri": "s3://b/d"}))


def test_a_secret_in_the_source_is_not_shown() -> None:
    assert "canary" not in page(DatasetPlace(digest=DIGEST), source="s3://me:canary@b/d")
