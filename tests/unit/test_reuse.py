"""The decision of a run to train, or to reuse the published model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.run.admission import check_model_store
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.reuse import image_job, image_job_is_needed, model_to_reuse
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.settings.config import TrainConfig
from support.faulty_s3 import FaultyS3, ignores_conditions, refused

IMAGE = "registry.example.com/trainer@sha256:" + "1" * 64
TAG, ID = "trainer:1", "sha256:" + "2" * 64
DIGEST = "0123456789abcdef"
CONFIG = TrainConfig(epochs=3)
VERSION = "20260101T000000Z-r1"


@pytest.fixture
def parameters(tmp_path: Path) -> RunParameters:
    return RunParameters(
        dataset_uri="s3://b/d",
        framework="pytorch",
        workers=2,
        processes_per_worker=2,
        model_uri=tmp_path.as_uri(),
        train_config=CONFIG,
        placement=Placement(image=IMAGE),
        skip_unchanged=True,
    )


def publish(models: Path, **changes: Any) -> None:
    """Write what promote_model writes."""
    usual = {
        "schema": "kubetrain/model/v2",
        "classes": [],
        "config": {},
        "version": VERSION,
        "files": [{"name": "model.pt", "size": len(b"weights")}],
        "run_id": "r1",
        "image": IMAGE,
        "image_id": ID,
        "dataset_digest": DIGEST,
        "config_digest": CONFIG.digest,
        "processes": 4,
        "metrics": {"accuracy": 0.9},
    }
    content = json.dumps({name: value for name, value in {**usual, **changes}.items() if value is not None})
    (models / VERSION).mkdir()
    (models / VERSION / "model.pt").write_bytes(b"weights")
    for name in (f"{VERSION}/model.json", "latest.json"):
        (models / name).write_text(content)


def no_id() -> str:
    raise AssertionError("the ID of the image is not needed")


def reason(parameters: RunParameters, capsys: pytest.CaptureFixture[str], image_id: Callable[[], str] = no_id) -> str:
    assert model_to_reuse(parameters, DIGEST, image_id) == {}
    return capsys.readouterr().out


def test_an_unchanged_model_is_reused_and_named(
    parameters: RunParameters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path)
    reused = model_to_reuse(parameters, DIGEST, no_id)
    assert reused["uri"] == f"{tmp_path.as_uri()}/{VERSION}/"
    assert reused["metrics"] == {"accuracy": 0.9}
    assert f"nothing to train: {reused['uri']} of run r1" in capsys.readouterr().out
    assert model_to_reuse(replace(parameters, skip_unchanged=False), DIGEST, no_id) == {}


@pytest.mark.parametrize(
    ("published", "says"),
    [
        ({"dataset_digest": "f" * 16}, f"the dataset is now {DIGEST}, not {'f' * 16}"),
        ({"config_digest": "c"}, f"the configuration is now {CONFIG.digest}, not c"),
        ({"image": "old@sha256:2"}, "the image is now"),
        ({"processes": 8}, "processes is now 4, not 8"),
        ({"processes": None}, "processes is now 4, not known"),
        ({"image": TAG, "image_id": None}, f"the image of the latest model, {TAG}, has no digest"),
    ],
)
def test_a_change_leads_to_training_and_is_named(
    parameters: RunParameters,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    published: dict[str, Any],
    says: str,
) -> None:
    publish(tmp_path, **published)
    words = reason(parameters, capsys)
    assert words.startswith("training is needed: ")
    assert says in words


def test_without_a_model_the_run_trains(parameters: RunParameters, capsys: pytest.CaptureFixture[str]) -> None:
    assert "no model is published yet" in reason(parameters, capsys)


@pytest.mark.parametrize("file", ["model.json", "model.pt"])
def test_a_model_whose_files_were_deleted_is_not_reused(
    parameters: RunParameters, tmp_path: Path, capsys: pytest.CaptureFixture[str], file: str
) -> None:
    publish(tmp_path)
    (tmp_path / VERSION / file).unlink()
    assert f"{file} of the latest model, {tmp_path.as_uri()}/{VERSION}/, is missing" in reason(parameters, capsys)


@pytest.mark.parametrize("content", ["", "{}", "[" * 100_000])
def test_a_model_with_another_description_than_latest_is_not_reused(
    parameters: RunParameters, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: str
) -> None:
    publish(tmp_path)
    (tmp_path / VERSION / "model.json").write_text(content)
    assert "model.json of the latest model, " in reason(parameters, capsys)


@pytest.mark.parametrize("content", [b"", b"weight", b"weights!"])
def test_a_model_with_a_file_of_another_size_is_not_reused(
    parameters: RunParameters, tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    publish(tmp_path)
    (tmp_path / VERSION / "model.pt").write_bytes(content)
    assert f"model.pt of the latest model, {tmp_path.as_uri()}/{VERSION}/, is" in reason(parameters, capsys)


@pytest.mark.parametrize("value", [None, 7])
@pytest.mark.parametrize("name", ["version", "files", "run_id", "image", "dataset_digest", "config_digest"])
def test_an_incomplete_description_of_the_latest_model_ends_the_run_before_its_sync(
    parameters: RunParameters, tmp_path: Path, name: str, value: object
) -> None:
    publish(tmp_path, **{name: value})
    with pytest.raises(KubetrainError, match=r"latest.json does not describe a model"):
        check_model_store(parameters)


def test_an_elastic_training_may_have_ended_with_any_number_of_its_pods(
    parameters: RunParameters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(tmp_path, processes=6)
    elastic = replace(parameters, workers=4, min_workers=3)
    assert model_to_reuse(elastic, DIGEST, no_id)
    capsys.readouterr()
    assert "processes is now 8, not 6" in reason(replace(elastic, min_workers=0), capsys)
    fewer = replace(elastic, workers=2, min_workers=1)
    assert "processes is now 2 to 4, not 6" in reason(fewer, capsys)
    assert model_to_reuse(replace(fewer, max_workers=3), DIGEST, no_id)


class TestImagesWithoutDigest:
    @pytest.fixture(autouse=True)
    def by_tag(self, parameters: RunParameters) -> RunParameters:
        return replace(parameters, placement=Placement(image=TAG))

    def test_the_same_content_is_reused(self, by_tag: RunParameters, tmp_path: Path) -> None:
        publish(tmp_path, image="registry/" + TAG, image_id=f"docker.io/library/trainer@{ID}")
        assert model_to_reuse(by_tag, DIGEST, lambda: ID)

    @pytest.mark.parametrize(("now", "says"), [("sha256:3", "now trainer:1 (sha256:3)"), ("", "may have changed")])
    def test_another_content_under_the_same_name_is_noticed(
        self, by_tag: RunParameters, tmp_path: Path, capsys: pytest.CaptureFixture[str], now: str, says: str
    ) -> None:
        publish(tmp_path, image=TAG)
        assert says in reason(by_tag, capsys, lambda: now)

    def test_no_pod_is_started_if_something_else_changed(
        self, by_tag: RunParameters, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        publish(tmp_path, image=TAG, config_digest="c")
        assert "configuration" in reason(by_tag, capsys)

    def test_the_pod_that_finds_the_id_takes_no_gpu(self, by_tag: RunParameters) -> None:
        training = replace(by_tag.placement, gpus=2, memory="64Gi", pod=pod_patch({"nodeSelector": {"gpu": "h100"}}))
        job = image_job(replace(by_tag, placement=training, pipeline="p", run_id="r"))
        assert (job.placement.image, job.placement.spec["nodeSelector"]) == (TAG, {"gpu": "h100"})
        assert (job.placement.gpus, job.placement.memory) == (0, "128Mi")
        assert image_job_is_needed(by_tag)
        assert not image_job_is_needed(replace(by_tag, placement=Placement(image=IMAGE)))
        assert not image_job_is_needed(replace(by_tag, skip_unchanged=False))


class TestModelStore:
    """The store of the models is tried before anything is trained."""

    def test_another_programs_latest_is_refused(self, parameters: RunParameters, tmp_path: Path) -> None:
        (tmp_path / "latest.json").write_text("{}")
        with pytest.raises(KubetrainError, match=r"latest\.json .* model\.uri"):
            check_model_store(parameters)

    def test_a_run_without_training_needs_no_model_store(self, parameters: RunParameters) -> None:
        check_model_store(replace(parameters, framework="", model_uri=""))

    def test_a_refused_write_ends_the_run_and_an_ignored_condition_is_reported(
        self, parameters: RunParameters, s3_credentials: None, capsys: pytest.CaptureFixture[str]
    ) -> None:
        s3 = FaultyS3()
        with s3.serving() as url:
            models = replace(parameters, model_uri="s3://bucket/models", s3_endpoint=url)
            check_model_store(models)
            assert capsys.readouterr().out == ""
            s3.fail("put", ignores_conditions("If-Match"), times=9)
            check_model_store(models)
            assert "warning: s3://bucket/models ignores If-Match" in capsys.readouterr().out
        s3 = FaultyS3()
        with s3.serving() as url:
            s3.fail("put", refused(403, "AccessDenied"), times=9)
            with pytest.raises(KubetrainError, match="AccessDenied"):
                check_model_store(replace(models, s3_endpoint=url))
