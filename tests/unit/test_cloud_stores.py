"""Google Cloud Storage and Azure Blob Storage that fail, and their credentials."""

import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from kubetrain_components.object_store import retries
from kubetrain_components.object_store.open_store import check_uri, check_writable, open_store
from kubetrain_components.object_store.store import (
    Access,
    AccessRefused,
    ObjectChanged,
    ObjectStore,
    PermissionDenied,
    StoreError,
)
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from support.cloud_servers import ACCOUNT, make_bucket, make_container
from support.faulty_http import (
    Answer,
    Fault,
    FaultyHttp,
    after,
    cut_short,
    flipped,
    lengthened,
    refused,
    serving,
    shortened,
)

LARGE = bytes(range(256)) * 4000
FILES = {"train/1": b"small", "train/ünï #2": b"x" * 1000, "test/large": LARGE}
LISTS = {"gcs": "maxResults", "azure": "comp=list"}


class Place:
    """A store behind a faulty proxy, and the same store without the proxy."""

    def __init__(self, kind: str, uri: str, proxy: FaultyHttp, sound: ObjectStore) -> None:
        self.kind, self.uri, self.proxy, self.sound = kind, uri, proxy, sound

    def fail(self, key: str, *faults: Fault) -> None:
        if key == "list":
            self.proxy.fail(LISTS[self.kind], *faults)
            return
        self.proxy.fail(
            f"/p/{key}?alt=media" if self.kind == "gcs" else f"GET /{ACCOUNT}/{self.bucket}/p/{key}", *faults
        )

    @property
    def bucket(self) -> str:
        return self.uri.split("/")[-2]


@pytest.fixture(params=[pytest.param(kind, marks=pytest.mark.slow) for kind in ("gcs", "azure")])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    variables: dict[str, str] = request.getfixturevalue(request.param)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.01)
    bucket = f"faulty-{abs(hash(request.node.nodeid)):x}"[:40]
    if request.param == "gcs":
        make_bucket(variables, bucket)
        variable, uri = "STORAGE_EMULATOR_HOST", f"gs://{bucket}/p"
    else:
        make_container(variables, bucket)
        variable, uri = "AZURE_STORAGE_ENDPOINT", f"az://{ACCOUNT}/{bucket}/p"
    sound = open_store(uri)
    for key, content in FILES.items():
        sound.write(key, content)
    upstream = variables[variable].removesuffix(f"/{ACCOUNT}")
    with FaultyHttp(upstream).serving() as proxy:
        monkeypatch.setenv(variable, variables[variable].replace(upstream, proxy.url))
        yield Place(request.param, uri, proxy, sound)


def data_of(staging: Path) -> dict[str, bytes]:
    (data,) = staging.glob("versions/[!.]*/data")
    return {path.relative_to(data).as_posix(): path.read_bytes() for path in data.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    "fault", [flipped, shortened, cut_short(3), refused(503, Retry_After="0"), refused(429), refused(500)]
)
@pytest.mark.parametrize("key", ["train/1", "test/large"])
def test_faults_of_an_object_are_overcome(place: Place, tmp_path: Path, key: str, fault: Fault) -> None:
    place.fail(key, fault)
    report = transfer_dataset(open_store(place.uri), tmp_path)
    assert data_of(tmp_path) == FILES
    assert report.unverified == 0


@pytest.mark.parametrize(
    ("fault", "says"), [(flipped, "train/1' arrived corrupt 3 times"), (lengthened, "has more than the 5 bytes")]
)
def test_an_object_that_stays_damaged_is_not_published(place: Place, tmp_path: Path, fault: Fault, says: str) -> None:
    place.fail("train/1", *[fault] * 3)
    with pytest.raises(KubetrainError, match=says):
        transfer_dataset(open_store(place.uri), tmp_path)
    assert not [*tmp_path.glob("versions/[!.]*")]


def test_a_listing_that_fails_is_asked_for_again(place: Place, tmp_path: Path) -> None:
    place.fail("list", cut_short(20), refused(503), refused(429))
    transfer_dataset(open_store(place.uri), tmp_path)
    assert data_of(tmp_path) == FILES


def test_an_object_that_changes_after_the_listing_is_listed_again(place: Place, tmp_path: Path) -> None:
    place.fail("list", after(lambda: place.sound.write("train/1", b"other")))
    transfer_dataset(open_store(place.uri), tmp_path)
    assert data_of(tmp_path) == {**FILES, "train/1": b"other"}


def test_an_object_that_changes_between_two_ranges_has_changed(place: Place) -> None:
    store = open_store(place.uri)
    etag = {item.key: item.etag for item in store.list()}["test/large"]
    assert store.read("test/large", etag, 0, 10).read() == LARGE[:10]
    place.sound.write("test/large", LARGE[::-1])
    with pytest.raises(ObjectChanged):
        store.read("test/large", etag, 10, 20)


def test_the_checksum_is_known_without_reading(place: Place) -> None:
    store = open_store(place.uri)
    item = store.find("train/1")
    assert item is not None
    expected = {"gcs": "crc32c:", "azure": "md5:"}[place.kind]
    found = store.checksum(item.key, item.etag)
    assert found is not None and found.startswith(expected)
    assert store.read("train/1").checksum == found


def test_a_write_whose_answer_is_lost_is_this_write(place: Place) -> None:
    place.proxy.fail("upload" if place.kind == "gcs" else "PUT", cut_short(0), refused(503))
    open_store(place.uri).write_if("latest.json", b"mine", None)
    assert place.sound.read("latest.json").read() == b"mine"


def test_another_writer_is_not_overwritten_by_a_write_that_is_tried_again(place: Place) -> None:
    def refuse(_: Answer) -> Answer:
        place.sound.write("latest.json", b"another's")
        return Answer(503, {}, b"")

    place.proxy.fail("upload" if place.kind == "gcs" else "PUT", refuse)
    with pytest.raises(ObjectChanged):
        open_store(place.uri).write_if("latest.json", b"mine", None)
    assert place.sound.read("latest.json").read() == b"another's"


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [(401, AccessRefused, "rejected the credentials"), (403, PermissionDenied, "access to the listing of .* denied")],
)
def test_refusals_say_what_to_check(place: Place, status: int, kind: type[StoreError], says: str) -> None:
    place.fail("list", refused(status))
    with pytest.raises(kind, match=rf"{says} .*{status}.*: check "):
        list(open_store(place.uri).list())


def test_a_missing_bucket_is_named(place: Place) -> None:
    uri = place.uri.replace(place.bucket, "no-such-bucket")
    for use in (lambda: list(open_store(uri).list()), lambda: open_store(uri).write("key", b"")):
        with pytest.raises(StoreError, match=f"{uri} does not exist"):
            use()


def test_a_long_listing_has_pages(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubetrain_components.object_store.gcs.store.PAGE_OBJECTS", "2")
    monkeypatch.setattr("kubetrain_components.object_store.azure.store.PAGE_BLOBS", "2")
    assert {item.key: item.size for item in open_store(place.uri).list()} == {
        key: len(content) for key, content in FILES.items()
    }
    assert len([request for request in place.proxy.requests if LISTS[place.kind] in request]) == 2


def azure_page(*blobs: str) -> bytes:
    return f"<?xml version='1.0'?><EnumerationResults><Blobs>{''.join(blobs)}</Blobs></EnumerationResults>".encode()


def blob(name: str, more: str = "", attributes: str = "") -> str:
    properties = f"<Content-Length>1</Content-Length><Etag>0x8D</Etag>{more}"
    return f"<Blob><Name{attributes}>{name}</Name><Properties>{properties}</Properties></Blob>"


def test_folders_of_a_hierarchical_namespace_are_not_blobs(monkeypatch: pytest.MonkeyPatch) -> None:
    marked = blob("p/b").replace("</Blob>", "<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata></Blob>")
    folder = blob("p/a", "<ResourceType>directory</ResourceType>")
    page = azure_page(folder, marked, blob("p/a/1"), blob("p/a%EF%BF%BE", attributes=' Encoded="true"'))
    with serving(Fixed, body=page) as url:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", url)
        listed = list(open_store(f"az://{ACCOUNT}/data/p", access=Access.ANONYMOUS).list())
    assert [item.key for item in listed] == ["a/1", "a\ufffe"]
    assert listed[0].etag == f"0x8D@{ACCOUNT}/data"


def test_a_login_page_is_no_listing(monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(Fixed, body=b"<html>Please <log in") as url:
        monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", url)
        with pytest.raises(StoreError, match=r"cannot be read, it begins with '<html>Please.*login page"):
            list(open_store(f"az://{ACCOUNT}/data", access=Access.ANONYMOUS).list())


class Fixed(BaseHTTPRequestHandler):
    body: bytes

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    "uri", ["gs://", "gs://B/x", "gs://bucket//x", "az://account", "az://my-account/data", "az://account/data//x"]
)
def test_an_invalid_uri_is_refused(uri: str) -> None:
    with pytest.raises(InvalidSetting, match=f"'{uri}' is not valid: write {uri[:5]}"):
        check_uri("data.uri", uri)


@pytest.mark.parametrize("uri", ["gs://bucket.of-mine/a/b/", "az://account/data", "az://account/$web/a b"])
def test_a_valid_uri_can_hold_models(uri: str) -> None:
    check_writable("model.uri", uri)


@pytest.mark.parametrize(
    ("uri", "module", "extra"),
    [("gs://bucket", "google.auth", "components,gcs"), ("az://account/data", "azure.identity", "components,azure")],
)
def test_without_its_library_the_extra_is_named(
    uri: str, module: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AZURE_STORAGE_KEY", "AZURE_STORAGE_SAS_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setitem(sys.modules, module, None)
    for name in [name for name in sys.modules if name.startswith("kubetrain_components.object_store.gcs")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(KubetrainError, match=rf"'{module}' is not installed, which {uri[:5]} needs.*\[{extra}\]"):
        open_store(uri)
