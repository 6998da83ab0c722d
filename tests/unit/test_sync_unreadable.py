"""Files on the staging volume that exist but cannot be read: they are not damaged, and the error names them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.object_store.store import ObjectContent
from kubetrain_components.sync_dataset.publish import published_versions
from kubetrain_components.sync_dataset.transfer import preview_sync, transfer_dataset
from kubetrain_pipelines.cli.verify import verify_folder
from kubetrain_trainer.errors import KubetrainError
from support.permissions import obeyed_permissions


@pytest.fixture(autouse=True)
def permissions() -> Iterator[None]:
    with obeyed_permissions():
        yield


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name in ("a", "b"):
        (folder / name).write_bytes(name.encode())
    return folder


@pytest.fixture
def staging(tmp_path: Path) -> Path:
    return tmp_path / "staging"


@pytest.fixture
def version(source: Path, staging: Path) -> Iterator[Path]:
    path = staging / "versions" / transfer_dataset(DirectoryStore(source), staging).digest
    yield path
    for each in (path, path / "manifest.jsonl", path / "data"):
        each.chmod(0o755)


@pytest.mark.parametrize("name", ["manifest.jsonl", "data", "."])
def test_a_version_that_cannot_be_read_is_not_called_damaged(
    source: Path, staging: Path, version: Path, name: str
) -> None:
    (version / name).chmod(0)
    with pytest.raises(KubetrainError, match=rf"{version / name}.*\(Permission denied\)"):
        transfer_dataset(DirectoryStore(source), staging)
    assert list((staging / "versions").iterdir()) == [version]


def test_another_version_that_cannot_be_read_is_not_reused(
    source: Path, staging: Path, version: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (version / "manifest.jsonl").chmod(0)
    (source / "c").write_bytes(b"c")
    report = transfer_dataset(DirectoryStore(source), staging)
    assert (report.downloaded, report.linked) == (3, 0)
    assert [each.path.name for each in published_versions(staging)] == [report.digest]
    assert f"{version / 'manifest.jsonl'} (Permission denied)" in caplog.text


def test_an_unreadable_file_of_an_interrupted_sync_is_downloaded_again(
    source: Path, staging: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Interrupted(DirectoryStore):
        def read(self, key: str, *rest: Any) -> ObjectContent:
            if key == "b":
                raise KeyboardInterrupt
            return super().read(key, *rest)

    with pytest.raises(KeyboardInterrupt):
        transfer_dataset(Interrupted(source), staging, concurrency=1)
    (file,) = staging.glob("versions/.*.partial/data/a")
    file.chmod(0)
    report = transfer_dataset(DirectoryStore(source), staging)
    assert (report.resumed, report.downloaded) == (0, 2)
    assert f"Permission denied: '{file}'" in caplog.text


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("data/a", "a cannot be read (Permission denied)"),
        ("data", "data (Permission denied)"),
        ("manifest.jsonl", "manifest.jsonl (Permission denied)"),
        (".", "(Permission denied)"),
    ],
)
def test_verify_reports_what_it_cannot_read_and_verifies_the_rest(
    source: Path, staging: Path, version: Path, name: str, says: str
) -> None:
    (source / "c").write_bytes(b"c")
    intact = staging / "versions" / transfer_dataset(DirectoryStore(source), staging).digest
    file = version / name
    if name == "data/a":
        content = file.read_bytes()
        file.unlink()  # the other version has the same file
        file.write_bytes(content)
    file.chmod(0)
    found = {each.path: each.problems for each in verify_folder(staging)}
    assert found.keys() == {version, intact}
    assert found[intact] == []
    assert any(says in problem for problem in found[version])


def test_verify_reports_damage_beside_an_added_folder_that_it_cannot_read(staging: Path, version: Path) -> None:
    (version / "data" / "a").chmod(0o644)
    (version / "data" / "a").write_bytes(b"A")
    added = version / "data" / "added"
    added.mkdir(mode=0)
    ((damaged, unreadable),) = [each.problems for each in verify_folder(staging)]
    added.chmod(0o755)
    assert damaged == "a does not match its checksum"
    assert f"{added} (Permission denied)" in unreadable


def test_verify_ignores_other_folders_that_it_cannot_read_but_names_a_folder_of_versions(
    staging: Path, version: Path
) -> None:
    other = staging / "lost+found"
    other.mkdir(mode=0)
    assert [each.path for each in verify_folder(staging)] == [version]
    (staging / "versions").chmod(0)
    with pytest.raises(KubetrainError, match=rf"cannot read {staging / 'versions'}.*Permission denied"):
        verify_folder(staging)
    (staging / "versions").chmod(0o755)


def test_a_dry_run_names_what_it_cannot_read(source: Path, staging: Path, version: Path) -> None:
    (source / "c").write_bytes(b"c")
    (staging / "versions").chmod(0o311)
    with pytest.raises(KubetrainError, match=rf"{staging / 'versions'}.*Permission denied"):
        preview_sync(DirectoryStore(source), staging)
    (staging / "versions").chmod(0o755)
