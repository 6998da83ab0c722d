"""`kubetrain sync` from real S3 servers of files that they did not write, which have no ETag but a time."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_pipelines.cli.verify import verify_folder
from support.s3_servers import serving_directory

pytestmark = pytest.mark.slow


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "root" / "bucket").mkdir(parents=True)
    return tmp_path / "root"


@pytest.fixture(params=["versitygw", "rclone"])
def url(
    request: pytest.FixtureRequest, root: Path, s3_credentials: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[str]:
    monkeypatch.delenv("AWS_SESSION_TOKEN")
    with serving_directory(request.param, root) as url:
        yield url


def put(root: Path, key: str, content: str, time: float = 1.7e9) -> None:
    path = root / "bucket" / key
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    os.utime(path, (time, time))


def sync(url: str, prefix: str, directory: Path) -> Path:
    """Return the data of the version."""
    digest = transfer_dataset(open_store(f"s3://bucket/{prefix}", url), directory).digest
    assert [problem for each in verify_folder(directory) for problem in each.problems] == []
    return directory / "versions" / digest / "data"


def test_files_with_equal_names_sizes_and_times_are_not_mixed_up(url: str, root: Path, tmp_path: Path) -> None:
    for version in ("v1", "v2"):
        put(root, f"{version}/x", version)
    assert [(sync(url, version, tmp_path / "out") / "x").read_text() for version in ("v1", "v2")] == ["v1", "v2"]


@pytest.mark.parametrize("time", [1.7e9, 1.7e9 + 0.999])
def test_a_change_is_seen(url: str, root: Path, tmp_path: Path, time: float) -> None:
    put(root, "x", "old", time)
    first = sync(url, "", tmp_path / "out")
    assert sync(url, "", tmp_path / "out") == first
    put(root, "x", "new", time + 1)
    assert (sync(url, "", tmp_path / "out") / "x").read_text() == "new"
