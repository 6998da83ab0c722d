"""Only an evaluation of the collected model is accepted."""

from pathlib import Path

import pytest

from kubetrain_components.evaluate_model.evaluate import EvaluationRequest, evaluate_model, evaluation_job
from kubetrain_components.jobs.job_state import Phase
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from support.jobs import MemoryBackend

REQUEST = EvaluationRequest(
    framework="pytorch",
    pipeline="p",
    run_id="r",
    data_dir=Path("/data"),
    output_dir=Path("/output/r"),
    dataset_digest="d" * 16,
    manifest_sha256="a",
)


@pytest.fixture
def output(tmp_path: Path) -> TrainingOutput:
    return TrainingOutput(tmp_path)


@pytest.fixture
def backend() -> MemoryBackend:
    """A backend whose evaluation job has already succeeded."""
    backend = MemoryBackend()
    handle = backend.create(evaluation_job(REQUEST))
    backend.finish(handle.name, Phase.SUCCEEDED, exit_code=0)
    return backend


def test_the_evaluation_of_the_collected_model_counts(output: TrainingOutput, backend: MemoryBackend) -> None:
    output.write_evaluation({"manifest_sha256": "a", "checkpoint": "step-00000003", "metrics": {"accuracy": 0.9}})
    assert evaluate_model(REQUEST, output, backend, print)["metrics"] == {"accuracy": 0.9}


def test_the_evaluation_of_another_model_does_not(output: TrainingOutput, backend: MemoryBackend) -> None:
    output.write_evaluation({"manifest_sha256": "b", "checkpoint": "step-00000002", "metrics": {"accuracy": 0.9}})
    with pytest.raises(KubetrainError, match="belongs to step-00000002, not to the collected model"):
        evaluate_model(REQUEST, output, backend, print)


def test_a_job_that_left_no_evaluation_proves_nothing(output: TrainingOutput, backend: MemoryBackend) -> None:
    with pytest.raises(KubetrainError, match=r"no evaluation\.json"):
        evaluate_model(REQUEST, output, backend, print)
