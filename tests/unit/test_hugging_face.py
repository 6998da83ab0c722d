"""Datasets of the Hugging Face hub."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_components.object_store import retries
from kubetrain_components.object_store.open_store import check_uri, check_writable, open_store
from kubetrain_components.object_store.store import AccessRefused, ObjectChanged, StoreError
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from support.faulty_http import Answer, Fault, FaultyHttp, cut_short, flipped, lengthened, refused, shortened
from support.hub import DATASET, TOKEN, Hub, git_oid

SMALL, LARGE = b"small file", bytes(range(256)) * 100
FILES = {"README.md": b"# Flowers", "train/a/1.jpg": SMALL, "train/a/ünï #1.jpg": b"x", "test/2.bin": LARGE}
URI = f"hf://datasets/{DATASET}"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    with Hub().serving() as served:
        served.commit(FILES)
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


@pytest.fixture
def proxy(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyHttp]:
    monkeypatch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.01)
    with FaultyHttp(hub.url).serving() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        yield served


def data_of(staging: Path) -> dict[str, bytes]:
    (data,) = staging.glob("versions/*/data")
    return {path.relative_to(data).as_posix(): path.read_bytes() for path in data.rglob("*") if path.is_file()}


def test_a_dataset_is_synced_and_verified(hub: Hub, tmp_path: Path) -> None:
    hub.page_files = 2
    report = transfer_dataset(open_store(URI), tmp_path)
    assert data_of(tmp_path) == FILES
    assert (report.objects, report.unverified) == (4, 0)


def test_a_file_is_known_by_the_hash_of_its_content(hub: Hub) -> None:
    listed = {item.key: item for item in open_store(URI).list()}
    assert listed["train/a/1.jpg"].etag == git_oid(SMALL)
    assert listed["test/2.bin"].etag == hashlib.sha256(LARGE).hexdigest()
    store = open_store(URI)
    assert store.read("test/2.bin").checksum == f"sha256:{hashlib.sha256(LARGE).hexdigest()}"
    assert store.checksum("test/2.bin", listed["test/2.bin"].etag) == f"sha256:{listed['test/2.bin'].etag}"
    assert store.checksum("train/a/1.jpg", git_oid(SMALL)) is None, "git's hash is not one of the content alone"
    assert store.find("train/a/1.jpg") == listed["train/a/1.jpg"]
    assert store.find("absent") is None


@pytest.mark.parametrize("revision", ["v1", "refs/convert/parquet", "refs%2Fpr%2F1", "a commit"])
def test_a_revision_and_a_folder_are_selected(hub: Hub, tmp_path: Path, revision: str) -> None:
    branch = revision.replace("%2F", "/")
    commit = hub.commit({"data/train/1": b"1", "data/2": LARGE, "database": b""}, branch=branch)
    store = open_store(f"{URI}@{commit if revision == 'a commit' else revision}/data")
    transfer_dataset(store, tmp_path)
    assert data_of(tmp_path) == {"train/1": b"1", "2": LARGE}


def test_a_version_is_one_commit_although_the_branch_moves(hub: Hub, tmp_path: Path) -> None:
    store = open_store(URI)
    listed = {item.key: item for item in store.list()}
    hub.commit(dict.fromkeys(FILES, b"changed"))
    assert store.read("train/a/1.jpg", listed["train/a/1.jpg"].etag).read() == SMALL
    assert transfer_dataset(store, tmp_path).objects == 4, "the next listing is of the new commit"
    assert set(data_of(tmp_path).values()) == {b"changed"}


@pytest.mark.parametrize(("key", "content"), [("train/a/1.jpg", SMALL), ("test/2.bin", LARGE)])
def test_ranges_are_read(hub: Hub, key: str, content: bytes) -> None:
    store = open_store(URI)
    etag = {item.key: item.etag for item in store.list()}[key]
    assert store.read(key, etag, 2, 5).read() == content[2:5]
    assert store.read(key, etag, 7).read() == content[7:]
    with pytest.raises(ObjectChanged):
        store.read(key, "0" * len(etag))
    with pytest.raises(ObjectChanged):
        store.read("absent")
    with pytest.raises(StoreError):
        store.read(key, etag, 100_000).read()


def test_the_token_goes_to_the_hub_only(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.is_gated = True
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    transfer_dataset(open_store(URI), tmp_path)
    assert data_of(tmp_path) == FILES
    for path, headers in hub.requests:
        assert ("authorization" in headers) == (not path.startswith(hub.cdn_url))
    assert any(path.startswith(hub.cdn_url) for path, _ in hub.requests)


def test_a_gated_dataset_says_what_to_do(hub: Hub) -> None:
    hub.is_gated = True
    with pytest.raises(AccessRefused, match=r"GatedRepo.*accept its terms on its page, and set HF_TOKEN"):
        list(open_store(URI).list())


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("hf://datasets/owner/absent", "RepoNotFound.*check the name"),
        (f"{URI}@absent", "does not exist.*RevisionNotFound"),
        (f"{URI}/absent", f"{URI}/absent does not exist.*EntryNotFound"),
    ],
)
def test_what_does_not_exist_is_named(hub: Hub, uri: str, says: str) -> None:
    with pytest.raises(StoreError, match=says):
        list(open_store(uri).list())


def test_it_is_only_read(hub: Hub) -> None:
    store = open_store(URI)
    for write in (lambda: store.write("key", b""), lambda: store.write_if("key", b"", None), lambda: store.delete("a")):
        with pytest.raises(StoreError, match="only read"):
            write()
    with pytest.raises(InvalidSetting, match="can only be read"):
        check_writable("model.uri", URI)


@pytest.mark.parametrize("uri", ["hf://datasets/flowers", "hf://owner/model", f"{URI}@/x", f"{URI}//x", "hf://"])
def test_an_invalid_uri_is_refused(uri: str) -> None:
    with pytest.raises(InvalidSetting, match="write hf://datasets/OWNER/NAME"):
        check_uri("data.uri", uri)


@pytest.mark.parametrize("key", ["train/a/1.jpg", "train/a/ünï #1.jpg"])
@pytest.mark.parametrize("fault", [flipped, shortened, cut_short(3), refused(503), refused(500)])
def test_faults_of_a_file_are_overcome(proxy: FaultyHttp, tmp_path: Path, key: str, fault: Fault) -> None:
    proxy.fail(f"resolve-cache/{commit_of(URI)}/{key}", fault)
    transfer_dataset(open_store(URI), tmp_path)
    assert data_of(tmp_path) == FILES


def commit_of(uri: str) -> str:
    return open_store(uri)._find_commit()  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("fault", "says"), [(flipped, "1.jpg' arrived corrupt 3 times"), (lengthened, "1.jpg' has more than the 10 bytes")]
)
def test_a_file_that_stays_damaged_is_not_published(proxy: FaultyHttp, tmp_path: Path, fault: Fault, says: str) -> None:
    proxy.fail(f"resolve-cache/{commit_of(URI)}/train/a/1.jpg", *[fault] * 3)
    with pytest.raises(KubetrainError, match=says):
        transfer_dataset(open_store(URI), tmp_path)
    assert not [*tmp_path.glob("versions/[!.]*")]


def test_a_damaged_large_file_is_fetched_again(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.01)
    with FaultyHttp(hub.cdn_url).serving() as cdn:
        hub.cdn_url = cdn.url
        cdn.fail("signature", flipped, cut_short(1000))
        transfer_dataset(open_store(URI), tmp_path)
    assert data_of(tmp_path) == FILES


def test_a_page_that_is_cut_short_is_listed_again(hub: Hub, proxy: FaultyHttp, tmp_path: Path) -> None:
    hub.page_files = 2
    proxy.fail("/tree/", cut_short(10), refused(429, RateLimit='"api";r=0;t=1'))
    proxy.fail("cursor", cut_short(10))
    transfer_dataset(open_store(URI), tmp_path)
    assert data_of(tmp_path) == FILES


def test_a_login_page_is_no_listing(proxy: FaultyHttp) -> None:
    proxy.fail("/tree/", lambda _: Answer(200, {}, b"<html>Please log in"))
    with pytest.raises(StoreError, match=r"begins with '<html>Please log in'.*login page"):
        list(open_store(URI).list())
