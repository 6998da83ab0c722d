"""The decision of a run to train, or to reuse the published model."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.placement import Placement
from kubetrain_components.run.admission import model_to_reuse
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.published_model import PublishedModel, reason_to_train
from kubetrain_trainer.config import TrainConfig

IMAGE = "registry.example.com/trainer@sha256:" + "1" * 64
DIGEST = "0123456789abcdef"
CONFIG = TrainConfig(epochs=3)


def published(**changes: Any) -> PublishedModel:
    usual = {
        "uri": "s3://models/v1/",
        "run_id": "r1",
        "image": IMAGE,
        "dataset_digest": DIGEST,
        "config_digest": CONFIG.digest,
    }
    return PublishedModel(**{**usual, **changes})


@pytest.mark.parametrize(
    ("latest", "image", "says"),
    [
        (published(), IMAGE, ""),
        (None, IMAGE, "no model is published yet"),
        (published(), "trainer:1", "the image trainer:1 has no digest"),
        (published(dataset_digest="f" * 16), IMAGE, f"the dataset is now {DIGEST}, not {'f' * 16}"),
        (published(config_digest="c"), IMAGE, "the configuration is now"),
        (published(image="old@sha256:2"), IMAGE, "the image is now"),
    ],
)
def test_training_is_skipped_only_if_nothing_changed(latest: PublishedModel | None, image: str, says: str) -> None:
    reason = reason_to_train(latest, DIGEST, CONFIG.digest, image)
    assert reason.startswith(says)
    assert bool(reason) == bool(says)


def test_a_run_prints_which_model_it_reuses(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parameters = RunParameters(
        dataset_uri="s3://b/d",
        framework="pytorch",
        model_uri=tmp_path.as_uri(),
        train_config=CONFIG,
        placement=Placement(image=IMAGE),
        skip_unchanged=True,
    )
    assert model_to_reuse(parameters, DIGEST) == {}
    assert "training is needed: no model is published yet" in capsys.readouterr().out
    model = published().to_dict() | {"version": "v1", "metrics": {"accuracy": 0.9}}
    (tmp_path / "latest.json").write_text(json.dumps(model))
    reused = model_to_reuse(parameters, DIGEST)
    assert reused["uri"].endswith("/v1/")
    assert reused["metrics"] == {"accuracy": 0.9}
    assert "nothing to train" in (words := capsys.readouterr().out)
    assert reused["uri"] in words
    assert model_to_reuse(replace(parameters, skip_unchanged=False), DIGEST) == {}
