"""Trainings that start from the weights of another one, with other classes, and with frozen layers."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kubetrain_components.object_store.open_store import open_store
from kubetrain_pipelines.local_run.embedded_s3 import EmbeddedS3
from kubetrain_trainer.output.training_output import TrainingOutput
from support.cli import kubetrain
from support.training import newest, parameters

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def few_classes(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The digits below five."""
    folder = tmp_path_factory.mktemp("few")
    for split in ("train", "val", "test"):
        for number in range(5):
            shutil.copytree(digits / split / str(number), folder / split / str(number))
    return folder


def train(framework: str, data: Path, output: Path, run_id: str, **settings: Any) -> Any:
    flags = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    return kubetrain(
        *("train", f"train-{framework}", "--data", data, "--output", output, "--run-id", run_id),
        *("--set", "pods.workers=2", "--set", "train.log_every=5", *flags),
    )


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_training_starts_from_another_ones_weights(
    framework: str, digits: Path, few_classes: Path, tmp_path: Path
) -> None:
    """The last layer is new, the frozen one stays, and the others go on from where they were."""
    first = train(framework, few_classes, tmp_path, "first", **{"train.epochs": 4})
    assert first.exit_code == 0, first.output
    frozen = {"pytorch": "0,1", "tensorflow": "conv2d,batch_normalization"}[framework]
    changed = {"train.freeze": frozen, "train.layer_rate": 0.8, "train.epochs": 1, "train.ema_decay": 0.9}
    second = train(framework, digits, tmp_path, "second", **{"model.start": "first"}, **changed)
    assert second.exit_code == 0, second.output
    assert "the training starts from " in second.output
    assert "; new: " in second.output

    one, other = parameters(newest(tmp_path / "first"), newest(tmp_path / "second"))
    kept = [name for name, value in one.items() if is_weight(name) and np.array_equal(value, other.get(name))]
    assert len(kept) == {"pytorch": 6, "tensorflow": 5}[framework], kept  # a convolution, and a normalization's four
    for name in kept:
        np.testing.assert_array_equal(other[name.replace("model/", "averages/")], one[name], "averages start from them")
    assert TrainingOutput(tmp_path / "second").read_export()["classes"] == [str(number) for number in range(10)]

    again = train(framework, digits, tmp_path, "other", **{"model.start": "first", "model.args.width": 16})
    assert again.exit_code != 0
    assert "model.start: " in again.output
    assert "does not fit this run's model" in again.output


def is_weight(name: str) -> bool:
    return name.startswith("model/")


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_file_without_weights_is_named(framework: str, digits: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.weights.h5").write_text("not weights")
    failed = train(framework, digits, tmp_path, "run", **{"model.start": "notes.weights.h5"})
    assert failed.exit_code != 0
    assert "notes.weights.h5" in failed.output.splitlines()[-1]
    assert "restarting" not in failed.output


def test_a_place_without_weights_is_named(digits: Path, tmp_path: Path) -> None:
    failed = train("pytorch", digits, tmp_path, "run", **{"model.start": "none"})
    assert failed.exit_code != 0
    assert "is neither a run with an exported model, nor a published model, nor a file" in failed.output


@pytest.mark.thorough
def test_a_run_brings_weights_from_s3(
    few_classes: Path, digits: Path, s3: EmbeddedS3, bucket: str, tmp_path: Path
) -> None:
    assert train("pytorch", few_classes, tmp_path, "first", **{"train.max_steps": 4}).exit_code == 0
    open_store(f"s3://{bucket}/pretrained", s3.url).write("net.pt", tmp_path / "first" / "export" / "model.pt")
    settings = {"data.uri": digits, "data.endpoint": s3.url, "pods.workers": 1, "train.max_steps": 4}
    pairs = [part for name, value in settings.items() for part in ("--set", f"{name}={value}")]
    command = ("run", "--workspace", tmp_path / "work", *pairs, "--set")
    missing = kubetrain(*command, f"model.start=s3://{bucket}/pretrained/other.pt")
    assert missing.exit_code == 1
    assert "pretrained/other.pt is neither an object nor a published model" in missing.output
    run = kubetrain(*command, f"model.start=s3://{bucket}/pretrained/net.pt")
    assert run.exit_code == 0, run.output
    log = (tmp_path / "work" / "logs" / "pipeline.log").read_text()
    (brought,) = (tmp_path / "work" / "output" / ".weights" / "versions").glob("*/data/net.pt")
    assert f"the training starts from {brought}; new: " in log


def test_a_single_training_brings_nothing_from_s3(digits: Path, tmp_path: Path) -> None:
    failed = train("pytorch", digits, tmp_path, "run", **{"model.start": "s3://bucket/net.pt"})
    assert failed.exit_code == 2
    assert "only runs of a pipeline bring weights from S3: use `kubetrain run`" in failed.output
