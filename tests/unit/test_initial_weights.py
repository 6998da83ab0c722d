"""Which file a training starts from."""

from pathlib import Path

import pytest

from kubetrain_components.object_store.open_store import open_store
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.models.initial_weights import initial_weights
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.settings.config import TrainConfig
from support.model_files import publish
from support.training import FakeGroup


def found(root: Path, weights: str, file_name: str = "model.pt") -> Path | None:
    config = TrainConfig(initial_weights=weights)
    arguments = Arguments(config=config, data_dir=root, output=TrainingOutput(root / "run"), dataset_digest="")
    return initial_weights(arguments, FakeGroup(0, list), [file_name])


def trained(output: TrainingOutput, framework: str, file_name: str) -> None:
    output.begin(framework, TrainConfig(), "")
    details = {"metrics": {"accuracy": 0.9}}
    checkpoint = output.write_checkpoint(TrainingProgress(step=1), details, lambda path: (path / "state").touch())
    output.write_export(checkpoint, {}, lambda path: (path / file_name).touch())


def test_the_model_of_another_run(tmp_path: Path) -> None:
    trained(TrainingOutput(tmp_path / "first"), "pytorch", "model.pt")
    assert found(tmp_path, "first") == tmp_path / "first/export/model.pt"


def test_a_model_of_the_other_framework_is_named(tmp_path: Path) -> None:
    trained(TrainingOutput(tmp_path / "first"), "tensorflow", "model.weights.h5")
    with pytest.raises(InvalidSetting, match=r"first/export is one of tensorflow and has no model\.pt"):
        found(tmp_path, "first")
    publish(open_store(str(tmp_path / "models")), "v1")
    with pytest.raises(InvalidSetting, match=r"models/v1 is one of pytorch and has no model\.weights\.h5"):
        found(tmp_path, "models/v1", "model.weights.h5")


def test_a_run_that_resumes_starts_from_its_checkpoint_(tmp_path: Path) -> None:
    (tmp_path / "weights.pt").touch()
    output = TrainingOutput(tmp_path / "run")
    trained(output, "pytorch", "model.pt")
    assert found(tmp_path, "weights.pt") is None
