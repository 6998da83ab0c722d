"""A dataset version that lost files since it was published is noticed before it is used."""

from pathlib import Path

import pytest

from kubetrain_components.evaluate_model.evaluate import EvaluationRequest, evaluation_job
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.run.dataset_place import DatasetPlace
from kubetrain_trainer.data.dataset_files import check_no_file_is_lost
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.settings.config import TrainConfig

REPORT = {"digest": "d" * 16, "objects": 20, "claim": "c", "sub_path": "versions/d/data"}


def test_fewer_files_than_published_are_refused(tmp_path: Path) -> None:
    for name in ("train/a/1.png", "train/b/2.png", "README"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    check_no_file_is_lost(tmp_path, 3)
    check_no_file_is_lost(tmp_path, 0)
    with pytest.raises(KubetrainError, match=r"has 3 files, but the dataset version was published with 4: .* sync"):
        check_no_file_is_lost(tmp_path, 4)


def commands(place: DatasetPlace) -> list[str]:
    version = {"dataset_digest": place.digest, "dataset_files": place.files}
    common = {"framework": "pytorch", "pipeline": "p", "run_id": "r", "data_dir": Path("/data"), **version}
    common["output_dir"] = Path("/output")
    training = TrainingJob(config=TrainConfig(), **common).to_job()  # type: ignore[arg-type]
    request = EvaluationRequest(manifest_sha256="a", **common)  # type: ignore[arg-type]
    evaluation = evaluation_job(request)
    return [" ".join(job.replicas[0].command) for job in (training, evaluation)]


def test_the_number_of_files_reaches_the_trainers() -> None:
    place = DatasetPlace.of_report(REPORT)
    # Kubeflow Pipelines turns the integers of a dictionary into floats.
    passed_on = DatasetPlace(**{**place.to_dict(), "files": 20.0})  # type: ignore[arg-type]
    for command in [*commands(place), *commands(passed_on)]:
        assert "--dataset-digest dddddddddddddddd --dataset-files 20" in command
        assert "20.0" not in command


def test_a_place_without_a_number_is_not_checked() -> None:
    place = DatasetPlace(digest="d" * 16)  # a run that began with an older version
    assert all("--dataset-files" not in command for command in commands(place))
