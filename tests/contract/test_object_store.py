"""The contract of every object store."""

import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ConnectionClosedError
from botocore.httpsession import URLLib3Session

from kubetrain_components.object_store.filtered_store import FilteredStore
from kubetrain_components.object_store.joined_store import JoinedStore
from kubetrain_components.object_store.open_store import check_uri, open_store
from kubetrain_components.object_store.probe_writes import probe_writes
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoredObject, StoreError
from kubetrain_pipelines.local_run.embedded_s3 import EmbeddedS3
from kubetrain_trainer.errors import InvalidSetting
from support.cloud_servers import ACCOUNT, make_bucket, make_container
from support.permissions import obeyed_permissions
from support.s3_servers import serving_directory

SERVERS = ("gcs", "azure", "versitygw", "rclone")
"""Emulators, and real S3 servers of directories."""
STORES = ["s3", "directory", "joined", "filtered", *(pytest.param(kind, marks=pytest.mark.slow) for kind in SERVERS)]
can_hold_models = pytest.mark.parametrize("store", STORES[:-1], indirect=True)
"""rclone ignores conditions of writes, and has no tags but whole seconds if it does not hash."""


class OneFolder:
    """One folder of a joined store, because these tests choose the keys."""

    def __init__(self, store: JoinedStore, folder: str) -> None:
        self.uri, self._store, self._folder = store.uri, store, folder

    def list(self) -> Iterator[StoredObject]:
        found = (item for item in self._store.list() if item.key.startswith(self._folder))
        return (item._replace(key=item.key.removeprefix(self._folder)) for item in found)

    def find(self, key: str) -> StoredObject | None:
        found = self._store.find(self._folder + key)
        return found._replace(key=key) if found else None

    def __getattr__(self, name: str) -> Any:
        return lambda key, *more, **named: getattr(self._store, name)(self._folder + key, *more, **named)


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ObjectStore]:
    if request.param == "joined":
        other = open_store(str(tmp_path / "other"))
        other.write("hidden from these tests", b"x")
        yield OneFolder(JoinedStore({"mine": open_store(str(tmp_path / "mine")), "other": other}), "mine/")
    elif request.param == "filtered":
        whole = open_store(str(tmp_path / "whole"))
        whole.write("other/a.txt", b"x")
        yield FilteredStore(whole, ["*"], ["other/*"])
    elif request.param == "directory":
        yield open_store(str(tmp_path / "store with space"))
    elif request.param in ("gcs", "azure"):
        yield open_store(cloud_uri(request))
    elif request.param == "s3":
        server: EmbeddedS3 = request.getfixturevalue("s3")
        yield open_store(f"s3://{request.getfixturevalue('bucket')}/some/prefix", server.url)
    else:
        request.getfixturevalue("s3_credentials")
        request.getfixturevalue("monkeypatch").delenv("AWS_SESSION_TOKEN")
        (tmp_path / "buckets" / "bucket").mkdir(parents=True)
        with serving_directory(request.param, tmp_path / "buckets") as url:
            yield open_store("s3://bucket/some/prefix", url)


def cloud_uri(request: pytest.FixtureRequest) -> str:
    """Return the URI of an empty store of this test's own."""
    variables: dict[str, str] = request.getfixturevalue(request.param)
    for name, value in variables.items():
        request.getfixturevalue("monkeypatch").setenv(name, value)
    bucket = f"bucket-{abs(hash(request.node.nodeid)):x}"[:40]
    if request.param == "gcs":
        make_bucket(variables, bucket)
        return f"gs://{bucket}/some/prefix"
    make_container(variables, bucket)
    return f"az://{ACCOUNT}/{bucket}/some/prefix"


def test_written_objects_are_listed_and_read(store: ObjectStore, tmp_path: Path) -> None:
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


@can_hold_models
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


def test_a_missing_object_is_not_found(store: ObjectStore) -> None:
    store.write("there", b"")
    assert store.find("absent") is None
    with pytest.raises(ObjectChanged):
        store.read("absent").read()


@can_hold_models
def test_a_conditional_write(store: ObjectStore) -> None:
    store.write_if("latest", b"one", None)
    with pytest.raises(ObjectChanged):
        store.write_if("latest", b"two", None)
    found = store.find("latest")
    assert found is not None
    store.write_if("latest", b"two", found.etag)
    with pytest.raises(ObjectChanged):
        store.write_if("latest", b"three", found.etag)
    assert store.read("latest").read() == b"two"


@can_hold_models
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


@can_hold_models
def test_a_store_that_can_hold_models_lacks_nothing_and_keeps_no_trace_of_the_probe(store: ObjectStore) -> None:
    store.write("latest.json", b"x")
    assert probe_writes(store) == ""
    assert [each.key for each in store.list()] == ["latest.json"]


@pytest.mark.parametrize("store", STORES[-1:], indirect=True)
def test_a_store_that_ignores_conditions_of_writes_is_recognized(store: ObjectStore) -> None:
    assert "ignores If-None-Match and If-Match of writes" in probe_writes(store)
    assert not [*store.list()]


def test_deleted_objects_are_gone(store: ObjectStore) -> None:
    for key in ("deleted", "deep/er/deleted", "kept"):
        store.write(key, b"x")
    store.delete("deleted")
    store.delete("deep/er/deleted")
    store.delete("never/there")
    assert [each.key for each in store.list()] == ["kept"]
    assert store.find("deleted") is None


def test_only_objects_below_the_prefix_are_listed(s3: EmbeddedS3, bucket: str) -> None:
    whole = open_store(f"s3://{bucket}", s3.url)
    for key in ("train/1", "train/2", "training/3"):
        whole.write(key, b"x")
    assert sorted(each.key for each in open_store(f"s3://{bucket}/train", s3.url).list()) == ["1", "2"]
    assert sorted(each.key for each in open_store(f"s3://{bucket}/train/", s3.url).list()) == ["1", "2"]


def test_a_range_of_an_object_is_read(store: ObjectStore) -> None:
    store.write("key", b"0123456789")
    found = store.find("key")
    assert found is not None
    assert store.read("key", start=2, end=5).read() == b"234"
    assert store.read("key", found.etag, start=7).read() == b"789"
    assert store.read("key", end=3).read() == b"012"
    assert store.read("key", start=8, end=100).read() == b"89"
    assert store.read("key", end=3).checksum is None, "it is the whole object's"


@pytest.mark.parametrize(("start", "end"), [(10, None), (10, 12), (5, 5), (5, 3)])
def test_an_empty_range_is_refused(store: ObjectStore, start: int, end: int | None) -> None:
    store.write("key", b"0123456789")
    with pytest.raises(StoreError):
        store.read("key", start=start, end=end).read()


def test_a_range_of_a_changed_object_is_refused(store: ObjectStore) -> None:
    store.write("key", b"0123456789")
    with pytest.raises(ObjectChanged):
        store.read("key", "another etag", start=2, end=5).read()


def test_hidden_files_are_objects_but_files_of_the_store_are_not(store: ObjectStore) -> None:
    store.write(".hidden", b"x")
    store.write(".git/config", b"x")
    store.write_if("latest", b"x", None)
    assert sorted(each.key for each in store.list()) == [".git/config", ".hidden", "latest"]


@pytest.mark.parametrize("target", ["/etc/passwd", "/etc", "nowhere"])
def test_a_symbolic_link_in_a_directory_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "link").symlink_to(target)
    with pytest.raises(StoreError, match="folder/link is a symbolic link"):
        list(open_store(str(tmp_path)).list())


def test_the_directory_may_be_a_link(tmp_path: Path) -> None:
    open_store(str(tmp_path / "folder")).write("key", b"x")
    (tmp_path / "link").symlink_to("folder")
    assert [each.key for each in open_store(str(tmp_path / "link")).list()] == ["key"]


def test_a_file_written_to_while_it_is_read_has_changed(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 3_000_000)
    store = open_store(str(tmp_path))
    found = store.find("file")
    assert found is not None
    chunks = store.read("file", found.etag).chunks
    next(chunks)
    with (tmp_path / "file").open("r+b") as file:
        file.write(b"y")
    with pytest.raises(ObjectChanged):
        list(chunks)


def test_a_large_file_is_not_held_in_memory(store: ObjectStore, tmp_path: Path) -> None:
    with (tmp_path / "large").open("wb") as file:
        file.truncate(64 << 20)
    tracemalloc.start()
    store.write("large", tmp_path / "large")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 48 << 20


def test_a_large_file_is_written_although_the_last_answer_of_the_server_is_lost(
    s3: EmbeddedS3, bucket: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    send, statuses = URLLib3Session.send, []

    def send_and_lose(session: URLLib3Session, request: Any) -> Any:
        if request.method != "POST" or "uploadId" not in request.url:
            return send(session, request)
        response = send(session, request)
        if len(statuses) == 1:  # other servers forget an upload that is complete
            response.status_code = 404
            response._content = b"<Error><Code>NoSuchUpload</Code><Message>It is unknown.</Message></Error>"
        statuses.append(response.status_code)
        if len(statuses) == 1:
            raise ConnectionClosedError(endpoint_url=request.url)
        return response

    monkeypatch.setattr(URLLib3Session, "send", send_and_lose)
    with (tmp_path / "large").open("wb") as file:
        file.truncate(9 << 20)
    store = open_store(f"s3://{bucket}/models", s3.url)
    store.write("large", tmp_path / "large")
    assert statuses == [200, 404, 200]
    found = store.find("large")
    assert found is not None and found.size == 9 << 20


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir(mode=0)
    with obeyed_permissions(), pytest.raises(StoreError, match=f"cannot read {tmp_path}/folder/key"):
        open_store(str(tmp_path)).find("folder/key")


def test_a_directory_that_cannot_be_written_is_named() -> None:
    store = open_store("/proc/nowhere")
    for write in (lambda: store.write("key", b""), lambda: store.write_if("key", b"", None)):
        with pytest.raises(StoreError, match="cannot write /proc/nowhere"):
            write()


def test_writing_to_a_missing_bucket_names_it(s3: EmbeddedS3, s3_credentials: None, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    store = open_store("s3://no-such-bucket/x", s3.url)
    for content in (b"x", tmp_path / "file"):
        with pytest.raises(StoreError, match="bucket 'no-such-bucket' does not exist"):
            store.write("key", content)


@pytest.mark.parametrize("endpoint", ["not a url", "localhost:9000"])
def test_an_endpoint_that_is_not_a_url_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidSetting, match=f"{endpoint}.*is not a URL"):
        open_store("s3://bucket/x", endpoint)


def test_a_missing_profile_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_PROFILE", "nobodys")
    with pytest.raises(InvalidSetting, match=r"nobodys.*AWS_PROFILE"):
        open_store("s3://bucket/x")


def test_s3_reports_checksums(s3: EmbeddedS3, bucket: str) -> None:
    store = open_store(f"s3://{bucket}", s3.url)
    store.write("key", b"hello")
    found = store.find("key")
    assert found is not None
    assert store.read("key").checksum == store.checksum("key", found.etag) == "crc32:3610a686"


@pytest.mark.parametrize(
    ("uri", "endpoint", "says"),
    [
        ("s3://no-such-bucket/x", "", "bucket 'no-such-bucket' does not exist"),
        ("s3://bucket/x", "http://127.0.0.1:9", "cannot reach S3 at http://127.0.0.1:9"),
        ("/no/such/directory", "", "/no/such/directory is not a directory"),
    ],
)
def test_a_missing_location_is_named(s3: EmbeddedS3, s3_credentials: None, uri: str, endpoint: str, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        list(open_store(uri, endpoint or s3.url).list())


def test_missing_credentials_are_reported(s3: EmbeddedS3, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with pytest.raises(StoreError, match="credentials"):
        list(open_store("s3://bucket/x", s3.url).list())


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("", "is empty"),
        ("s3:///x", "has no bucket"),
        ("ftp://bucket/x", "neither s3://BUCKET/PREFIX, .* nor the path of a directory"),
        ("s3://My_Bucket!/x", "bucket 'My_Bucket!' may have only letters"),
        ("s3://two words", "bucket 'two words'"),
        ("s3://bucket//x", "'s3://bucket//x' has an empty name between two slashes"),
        ("s3://bucket/x//", "an empty name"),
    ],
)
def test_an_invalid_uri_is_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        check_uri("dataset_uri", uri)


@pytest.mark.parametrize(
    ("uri", "kind"),
    [
        ("s3://images--use1-az4--x-s3/train", "directory bucket of S3 Express"),
        ("s3://point--use1-az4--xa-s3", "directory bucket of S3 Express"),
        ("s3://arn:aws:s3::123456789012:accesspoint:mfzwi23gnjvgw.mrap/x", "multi-region access point"),
        ("s3://arn:aws:s3-object-lambda:us-east-1:123456789012:accesspoint/mine", "S3 Object Lambda"),
        ("s3://arn:aws:s3-outposts:us-east-1:123456789012:outpost/op-1/accesspoint/mine", "S3 on Outposts"),
    ],
)
def test_buckets_that_need_another_protocol_are_refused(uri: str, kind: str) -> None:
    with pytest.raises(InvalidSetting, match=f"names an? (access point of |bucket of )?{kind}, which cannot be used"):
        check_uri("dataset_uri", uri)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://AKIAEXAMPLE:hunter/2@bucket/x",
        "s3://AKIAEXAMPLE:hunter2@bucket",
        "https://AKIAEXAMPLE:hunter2@host/bucket",
        "https://bucket.s3.amazonaws.com/key?X-Amz-Signature=hunter2",
    ],
)
def test_no_message_has_the_secret_of_a_uri(uri: str) -> None:
    with pytest.raises(InvalidSetting, match="dataset_uri") as caught:
        check_uri("dataset_uri", uri)
    assert "hunter" not in str(caught.value)


def test_an_endpoint_with_a_password_is_refused_without_repeating_it() -> None:
    with pytest.raises(InvalidSetting, match=r"http://…@minio:9000.*set AWS_ACCESS_KEY_ID") as caught:
        open_store("s3://bucket", "http://admin:hunter2@minio:9000")
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    "uri",
    [
        "s3://My_Old.Bucket",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint:mine/x",
        "s3://arn:aws:s3:eu-west-1:123456789012:accesspoint/mine",
        "s3://bucket/a:b@c",
        "s3://bucket/a//b/",
        "dir/!",
        "file:///a%20b",
    ],
)
def test_bucket_names_that_boto3_accepts_and_any_path_are_accepted(uri: str) -> None:
    check_uri("dataset_uri", uri)
