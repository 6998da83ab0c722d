"""The latest model is fetched for the gate: whole, or with the reason why not; never is a fault taken for "none"."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.fetch_model import fetch
from kubetrain_components.fetch_model.fetch import fetch_latest
from kubetrain_components.fetch_model.load import load_model
from kubetrain_components.object_store import retries
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import StoreUnavailable
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.models.latest_model import FETCHED
from kubetrain_trainer.output.model_folder import open_model
from support.faulty_s3 import FaultyS3, cut_short, refused
from support.model_files import describe, publish


def fetched(folder: Path) -> dict[str, str]:
    content: dict[str, str] = json.loads((folder / FETCHED).read_text())
    return content


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path / "models")


def test_the_latest_version_is_fetched_whole_and_replaces_an_earlier_one(store: DirectoryStore, tmp_path: Path) -> None:
    for version, content in (("v1", b"one"), ("v2", b"two")):
        publish(store, version, content)
        fetch_latest(store, tmp_path / "latest")
        assert fetched(tmp_path / "latest") == {"version": version, "problem": ""}
        model = open_model(tmp_path / "latest" / "model")
        assert (model.path / "sub" / "model.pt").read_bytes() == content


def test_without_a_model_this_is_noted(store: DirectoryStore, tmp_path: Path) -> None:
    publish(store, "v1")
    fetch_latest(store, tmp_path / "latest")
    store.delete("latest.json")
    fetch_latest(store, tmp_path / "latest")
    assert fetched(tmp_path / "latest") == {"version": "", "problem": ""}
    assert not (tmp_path / "latest" / "model").exists()


@pytest.mark.parametrize(
    ("key", "content", "version", "says"),
    [
        ("latest.json", b"{}", "", "does not describe a model that kubetrain published"),
        ("v1/sub/model.pt", b"weighty", "v1", "model.pt is damaged"),
        ("v1/sub/model.pt", None, "v1", "v1/sub/model.pt is missing: publish the model again"),
        ("v1/model.json", None, "v1", "v1/model.json is missing"),
        ("v1/model.json", b"{", "v1", "is not valid JSON"),
        ("v1/model.json", b"[" * 100_000, "v1", "is not valid JSON"),
        ("latest.json", b"[" * 100_000, "", "does not describe a model that kubetrain published"),
        ("v1/model.json", describe("v1", files=[{"name": "../../outside"}]), "v1", "does not describe a model"),
    ],
)
def test_a_model_that_is_not_whole_is_a_problem(
    store: DirectoryStore, tmp_path: Path, key: str, content: bytes | None, version: str, says: str
) -> None:
    publish(store, "v1")
    if content is None:
        store.delete(key)
    else:
        store.write(key, content)
    fetch_latest(store, tmp_path / "latest")
    assert fetched(tmp_path / "latest")["version"] == version
    assert says in fetched(tmp_path / "latest")["problem"]


@pytest.mark.parametrize(
    ("key", "changes", "says"),
    [
        ("v2/model.json", {"version": "v1"}, "the folder v2 has the model.json of version v1"),
        ("latest.json", {"metrics": {"accuracy": 0.9999}}, "latest.json differs from v2/model.json"),
    ],
)
def test_a_description_of_another_model_is_refused_everywhere(
    store: DirectoryStore, tmp_path: Path, key: str, changes: dict[str, Any], says: str
) -> None:
    for version in ("v1", "v2"):
        publish(store, version)
    store.write(key, json.dumps({**json.loads(store.read(key).read()), **changes}).encode())
    fetch_latest(store, tmp_path / "latest")
    assert says in fetched(tmp_path / "latest")["problem"]
    with pytest.raises(KubetrainError, match=says):
        load_model(tmp_path / "models" / key.removesuffix("model.json").removesuffix("latest.json"))


def test_a_model_that_is_published_at_that_moment_is_not_taken_for_none(store: DirectoryStore, tmp_path: Path) -> None:
    publish(store, "v1")
    find = store.find

    def find_late(key: str) -> Any:
        found = find(key)
        store.find = find
        publish(store, "v2")
        return found

    store.find = find_late
    fetch_latest(store, tmp_path / "latest")
    assert fetched(tmp_path / "latest") == {"version": "v2", "problem": ""}


class TestS3:
    @pytest.fixture
    def s3(self, s3_credentials: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[FaultyS3, str]]:
        monkeypatch.setattr(retries, "GIVE_UP_SECONDS", 0.5)
        server = FaultyS3()
        with server.serving() as url:
            publish(open_store("s3://bucket/models", url), "v1")
            yield server, url

    def test_a_fault_that_passes_leaves_no_trace(self, s3: tuple[FaultyS3, str], tmp_path: Path) -> None:
        server, url = s3
        server.fail("models/v1/sub/model.pt", refused(503, "SlowDown"), times=1)
        fetch_latest(open_store("s3://bucket/models", url), tmp_path)
        assert fetched(tmp_path) == {"version": "v1", "problem": ""}

    def test_a_download_that_is_interrupted_continues_where_it_was(
        self, s3: tuple[FaultyS3, str], tmp_path: Path
    ) -> None:
        server, url = s3
        publish(open_store("s3://bucket/models", url), "v1", b"weight" * 50_000)
        server.fail("models/v1/sub/model.pt", cut_short(200_000))
        fetch_latest(open_store("s3://bucket/models", url), tmp_path)
        assert fetched(tmp_path) == {"version": "v1", "problem": ""}
        assert [request.rpartition(" ")[2] for request in server.gets("models/v1/sub/model.pt")][1:] == [
            "bytes=200000-299999"
        ]

    def test_a_download_that_is_cut_again_and_again_ends_if_bytes_arrive_each_time(
        self, s3: tuple[FaultyS3, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(retries, "FIRST_BACK_OFF_SECONDS", 0.01)
        monkeypatch.setenv(retries.ATTEMPTS_VARIABLE, "3")
        server, url = s3
        publish(open_store("s3://bucket/models", url), "v1", b"weight" * 2000)
        server.fail("models/v1/sub/model.pt", cut_short(1000), times=6)
        fetch_latest(open_store("s3://bucket/models", url), tmp_path)
        assert fetched(tmp_path) == {"version": "v1", "problem": ""}
        assert server.gets("models/v1/sub/model.pt")[-1].endswith(" bytes=6000-11999")

    def test_a_server_that_does_not_answer_fails_the_pod_so_that_it_is_tried_again(
        self, s3: tuple[FaultyS3, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server, url = s3
        server.fail("models/v1/sub/model.pt", refused(503, "SlowDown"), times=99)
        with pytest.raises(StoreUnavailable):
            fetch_latest(open_store("s3://bucket/models", url), tmp_path)
        monkeypatch.setattr(
            sys, "argv", ["fetch", "--uri", "s3://bucket/models", "--endpoint", url, "--to", str(tmp_path)]
        )
        assert fetch.main() == 1
        assert not (tmp_path / FETCHED).exists()

    def test_a_store_that_refuses_is_a_problem(self, s3: tuple[FaultyS3, str], tmp_path: Path) -> None:
        server, url = s3
        server.fail("models/v1/sub/model.pt", refused(403, "AccessDenied"), times=9)
        fetch_latest(open_store("s3://bucket/models", url), tmp_path)
        assert "AccessDenied" in fetched(tmp_path)["problem"]


def test_a_model_is_not_loaded_from_other_stores() -> None:
    with pytest.raises(
        InvalidSetting, match=r"'ftp://x/y' is neither s3://BUCKET/PREFIX, .* nor the path of a directory"
    ):
        load_model("ftp://x/y")


def test_without_the_libraries_of_s3_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kubetrain_components.object_store.s3.store", None)
    with pytest.raises(KubetrainError, match=r"which s3:// needs: install it with `pip install -e '\.\[components\]'`"):
        load_model("s3://bucket/models")
