"""What every object store promises to the steps."""

import threading
from pathlib import Path

import pytest

from kubetrain_components.object_store.open_store import check_uri, open_store
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoreError
from kubetrain_pipelines.embedded_s3 import EmbeddedS3
from kubetrain_trainer.errors import InvalidSetting


@pytest.fixture(params=["s3", "directory"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "directory":
        return open_store(str(tmp_path / "store with space"))
    server: EmbeddedS3 = request.getfixturevalue("s3")
    return open_store(f"s3://{request.getfixturevalue('bucket')}/some/prefix", server.url)


def test_what_is_written_is_listed_and_read(store: ObjectStore, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"x" * 3_000_000)
    contents = {"a.txt": b"first", "deep/er/ünï çødé.txt": b"", "big": file.read_bytes()}
    store.write("a.txt", contents["a.txt"])
    store.write("deep/er/ünï çødé.txt", b"")
    store.write("big", file)
    listed = {each.key: each for each in store.list()}
    assert {key: each.size for key, each in listed.items()} == {key: len(value) for key, value in contents.items()}
    for key, value in contents.items():
        assert store.read(key, listed[key].etag).read() == value


def test_an_etag_changes_with_the_content(store: ObjectStore) -> None:
    store.write("key", b"one")
    first = store.find("key")
    store.write("key", b"two")
    second = store.find("key")
    assert first is not None
    assert second is not None
    assert first.etag != second.etag
    with pytest.raises(ObjectChanged):
        store.read("key", first.etag).read()
    assert store.read("key", second.etag).read() == b"two"


def test_what_is_not_there_is_said(store: ObjectStore) -> None:
    store.write("there", b"")
    assert store.find("absent") is None
    with pytest.raises(ObjectChanged):
        store.read("absent").read()


def test_writing_on_condition(store: ObjectStore) -> None:
    store.write_if("latest", b"one", None)
    with pytest.raises(ObjectChanged):
        store.write_if("latest", b"two", None)
    found = store.find("latest")
    assert found is not None
    store.write_if("latest", b"two", found.etag)
    with pytest.raises(ObjectChanged):
        store.write_if("latest", b"three", found.etag)
    assert store.read("latest").read() == b"two"


def test_of_two_writers_at_once_one_wins(store: ObjectStore) -> None:
    won: list[int] = []

    def write(number: int) -> None:
        try:
            store.write_if("latest", str(number).encode(), None)
            won.append(number)
        except ObjectChanged:
            pass

    writers = [threading.Thread(target=write, args=(number,)) for number in range(6)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [str(number).encode() for number in won] == [store.read("latest").read()]


def test_only_what_lies_below_the_prefix_is_listed(s3: EmbeddedS3, bucket: str) -> None:
    whole = open_store(f"s3://{bucket}", s3.url)
    for key in ("train/1", "train/2", "training/3"):
        whole.write(key, b"x")
    assert sorted(each.key for each in open_store(f"s3://{bucket}/train", s3.url).list()) == ["1", "2"]
    assert sorted(each.key for each in open_store(f"s3://{bucket}/train/", s3.url).list()) == ["1", "2"]


def test_a_directory_lists_neither_hidden_files_nor_links(tmp_path: Path) -> None:
    (tmp_path / "seen").write_text("x")
    (tmp_path / ".hidden").write_text("x")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "config").write_text("x")
    (tmp_path / "link").symlink_to("/etc/passwd")
    assert [each.key for each in open_store(tmp_path.as_uri()).list()] == ["seen"]


def test_s3_knows_what_its_bytes_must_hash_to(s3: EmbeddedS3, bucket: str) -> None:
    store = open_store(f"s3://{bucket}", s3.url)
    store.write("key", b"hello")
    assert store.read("key").md5 == "5d41402abc4b2a76b9719d911017c592"


@pytest.mark.parametrize(
    ("uri", "endpoint", "says"),
    [
        ("s3://no-such-bucket/x", "", "bucket 'no-such-bucket' does not exist"),
        ("s3://bucket/x", "http://127.0.0.1:9", "cannot reach S3 at http://127.0.0.1:9"),
        ("/no/such/directory", "", "/no/such/directory is not a directory"),
    ],
)
def test_a_place_that_is_not_there_is_named(
    s3: EmbeddedS3, s3_credentials: None, uri: str, endpoint: str, says: str
) -> None:
    with pytest.raises(StoreError, match=says):
        list(open_store(uri, endpoint or s3.url).list())


def test_missing_credentials_are_said(s3: EmbeddedS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match="credentials"):
        list(open_store("s3://bucket/x", s3.url).list())


def test_a_public_bucket_needs_none(
    s3: EmbeddedS3, bucket: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    open_store(f"s3://{bucket}", s3.url).write("key", b"x")
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    assert [each.key for each in open_store(f"s3://{bucket}", s3.url, anonymous=True).list()] == ["key"]


@pytest.mark.parametrize(
    ("uri", "says"),
    [("", "is empty"), ("s3:///x", "has no bucket"), ("gs://bucket/x", "neither s3://BUCKET/PREFIX nor")],
)
def test_a_uri_that_names_no_store_is_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        check_uri("dataset_uri", uri)
