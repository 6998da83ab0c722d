"""Datasets from several sources, and of some of their objects."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.object_store.filtered_store import FilteredStore
from kubetrain_components.object_store.open_store import is_inside, open_store, without_secrets
from kubetrain_components.object_store.store import ObjectChanged, ObjectContent, StoreError
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sync_dataset import transfer
from kubetrain_components.sync_dataset.partial_version import PartialVersion
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_pipelines.local_run.storage import with_local_uris
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.settings.config import TrainConfig


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, str]:
    for name in ("a", "b"):
        for key in ("cat/1.jpg", "cat/1.txt", "dog/1.jpg"):
            (tmp_path / name / key).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name / key).write_text(f"{name} {key}")
    return {"train": str(tmp_path / "a"), "test": str(tmp_path / "b")}


def keys(uri: str, include: tuple[str, ...] = (), exclude: tuple[str, ...] = ()) -> list[str]:
    return sorted(item.key for item in FilteredStore(open_store(uri), include, exclude).list())


def test_each_source_becomes_a_folder_of_one_version(sources: dict[str, str], tmp_path: Path) -> None:
    report = transfer_dataset(open_store(json.dumps(sources)), tmp_path / "staging")
    data = tmp_path / "staging" / "versions" / report.digest / "data"
    assert (data / "train" / "cat" / "1.jpg").read_text() == "a cat/1.jpg"
    assert (data / "test" / "dog" / "1.jpg").read_text() == "b dog/1.jpg"
    assert report.folders == ["test", "train"]
    turned = dict(reversed(sources.items()))
    again = transfer_dataset(open_store(json.dumps(turned)), tmp_path / "staging")
    assert (again.digest, again.source, again.downloaded) == (report.digest, report.source, 0)
    other = transfer_dataset(
        open_store(json.dumps({"train": sources["test"], "test": sources["train"]})), tmp_path / "s"
    )
    assert other.digest != report.digest


@pytest.mark.parametrize(
    ("include", "exclude", "left"),
    [
        ((), ("*.txt",), ["cat/1.jpg", "dog/1.jpg"]),
        (("cat/*",), (), ["cat/1.jpg", "cat/1.txt"]),
        (("*1.jpg",), ("cat*",), ["dog/1.jpg"]),
        (("cat/?.jpg", "dog/[0-9].jpg"), (), ["cat/1.jpg", "dog/1.jpg"]),
        (("CAT/*", "*.txt"), (), ["cat/1.txt"]),
    ],
)
def test_patterns(sources: dict[str, str], include: tuple[str, ...], exclude: tuple[str, ...], left: list[str]) -> None:
    assert keys(sources["train"], include, exclude) == left


def test_patterns_see_the_keys_of_the_version(sources: dict[str, str]) -> None:
    assert keys(json.dumps(sources), ("train/cat/*.jpg", "test/*.txt")) == ["test/cat/1.txt", "train/cat/1.jpg"]


def test_patterns_that_leave_nothing_are_refused(sources: dict[str, str]) -> None:
    with pytest.raises(StoreError, match=r"data.include and data.exclude leave no object of file://.*/a"):
        keys(sources["train"], ("*.png",))


def test_an_empty_source_is_refused(sources: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match=r"no objects under file://.*/empty, the source of val/"):
        keys(json.dumps({**sources, "val": str(tmp_path / "empty")}))


def test_a_source_that_changes_while_it_is_copied_is_listed_again(
    sources: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store: Any = open_store(json.dumps(sources))
    read, changed = store.read, Path(sources["test"], "cat", "1.jpg")

    def changing(key: str, *more: Any) -> ObjectContent:
        if key == "test/cat/1.jpg" and changed.read_text() != "new":
            changed.write_text("new")
        return read(key, *more)

    store.read = changing
    report = transfer_dataset(store, tmp_path / "staging", concurrency=1)
    data = tmp_path / "staging" / "versions" / report.digest / "data"
    assert (data / "test" / "cat" / "1.jpg").read_text() == "new"
    with pytest.raises(ObjectChanged):
        store.read("nowhere/cat/1.jpg")


def test_folders_that_differ_in_case_are_refused_where_they_would_be_one(
    sources: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PartialVersion, "is_one_file", lambda _self, one, other: one.lower() == other.lower())
    with pytest.raises(KubetrainError, match=r"'Train' and 'train' under .* are one file or folder on this volume"):
        transfer_dataset(open_store(json.dumps({**sources, "Train": sources["test"]})), tmp_path / "staging")


def test_a_version_inside_a_source_is_refused(sources: dict[str, str]) -> None:
    with pytest.raises(KubetrainError, match="is inside the dataset"):
        transfer.preview_sync(open_store(json.dumps(sources)), Path(sources["test"], "staging"))
    assert is_inside("s3://b/x/models", '{"a": "s3://a", "b": "s3://b/x"}')


@pytest.mark.parametrize(
    ("uri", "says"),
    [
        ("{}", "data.uri names no source"),
        ('{"a/b": "s3://b"}', "data.uri has a source named 'a/b': name each as the folder"),
        ('{"..": "s3://b"}', "a source named '..'"),
        ('{"": "s3://b"}', "a source named ''"),
        ('{"a": 1}', "data.uri.a must be a URI, not 1"),
        ('{"a": "ftp://b"}', "data.uri.a 'ftp://b' is neither s3://"),
        ('{"a": "s3://b", "a": "s3://c"}', "'a' is given twice"),
        ('{"a": ', "data.uri must be a JSON object"),
    ],
)
def test_sources_that_cannot_be_are_refused(uri: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=says):
        RunParameters(dataset_uri=uri)


def test_a_cache_reads_one_whole_source() -> None:
    config = TrainConfig(data="tar_shards", data_access="cache")
    for given in ({"dataset_uri": '{"train": "s3://b"}'}, {"dataset_uri": "s3://b", "dataset_exclude": ["*.txt"]}):
        with pytest.raises(InvalidSetting, match=r"data.delivery=cache reads all shards of one source"):
            RunParameters(framework="pytorch", model_uri="s3://m/x", train_config=config, **given)


def test_all_ways_to_name_sources_are_one(tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text("data:\n  uri: {train: s3://a, test: s3://b}\n  include: '*.jpg'\n")
    wanted = {"data": {"uri": '{"test": "s3://b", "train": "s3://a"}', "include": ["*.jpg"]}}
    parts = ("data.uri.train=s3://a", "data.uri.test=s3://b", "data.include=*.jpg")
    whole = ('data.uri={"train": "s3://a", "test": "s3://b"}', 'data.include=["*.jpg"]')
    python = {"data": {"uri": {"train": "s3://a", "test": "s3://b"}, "include": "*.jpg"}}
    assert AskedRun(source=str(file)).read().request == wanted
    assert AskedRun(pairs=parts).read().request == wanted
    assert AskedRun(settings=python).read().request == wanted
    assert AskedRun(pairs=("data.uri=s3://replaced", *parts)).read().request == wanted
    assert with_local_uris(AskedRun(pairs=whole).read().request, "train-pytorch", tmp_path)["data"] == wanted["data"]


def test_folders_of_this_machine_are_absolute(tmp_path: Path) -> None:
    request = with_local_uris({"data": {"uri": '{"a": "x", "b": "s3://y"}'}}, "train-pytorch", tmp_path)
    assert json.loads(request["data"]["uri"]) == {"a": str(Path("x").absolute()), "b": "s3://y"}


def test_no_secret_of_a_source_is_shown() -> None:
    assert without_secrets('{"a": "s3://me:hunter2@b/x"}') == '{"a": "s3://…@b/x"}'
