"""Scripts as guides on distributed training show them, brought by --code: they run, fail and resume as they are."""

import re
import shlex
import subprocess
from pathlib import Path

import pytest

from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from support.cli import Finished, kubetrain, run_json

SCRIPTS = Path(__file__).with_name("scripts")
THOROUGH = pytest.mark.thorough
PIPELINES = {
    "ddp_resnet": "train-pytorch",
    "torchrun_bert": "train-pytorch",
    "keras_multi_worker": "train-tensorflow",
}
ARGUMENTS = {
    "ddp_resnet": ["--output-dir=$KUBETRAIN_OUTPUT/export", "--batch-size=8"],
    "torchrun_bert": [
        "--output-dir=$KUBETRAIN_OUTPUT/export",
        "--model=bert-tiny",
        "--batch-size-per-gpu=8",
        "--max-seq-length=32",
        "--gradient-accumulation-steps=2",
    ],
    "keras_multi_worker": ["--model-dir=$KUBETRAIN_OUTPUT/export"],
}
MODELS = {
    "ddp_resnet": {"resnet18.pth"},
    "torchrun_bert": {"config.json", "pytorch_model.bin"},
    "keras_multi_worker": {"cnn.keras"},
}
pytestmark = pytest.mark.slow


def settings_of(name: str, *more: str) -> tuple[str, ...]:
    return ("--set", f"train.entry={shlex.join([f'{name}.py', *ARGUMENTS[name], *more])}")


def run(tmp_path: Path, name: str, code: Path, *more: str) -> Finished:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "unused").touch()
    command = ("run", PIPELINES[name], "--code", code, "--set", "data.uri=data")
    return kubetrain(*command, *settings_of(name, *more), cwd=tmp_path)


def published_files(tmp_path: Path) -> set[str]:
    model = Path(run_json(tmp_path / "kubetrain-workspace")["model"]["path"])
    return {path.name for path in model.iterdir()} - {"model.json"}


@pytest.mark.parametrize("name", ["ddp_resnet", pytest.param("torchrun_bert", marks=THOROUGH), "keras_multi_worker"])
def test_a_script_as_it_is_becomes_a_published_model(name: str, tmp_path: Path) -> None:
    finished = run(tmp_path, name, SCRIPTS)
    assert finished.exit_code == 0, finished.output
    assert published_files(tmp_path) == MODELS[name]


@pytest.mark.parametrize(
    ("name", "argument", "cause"),
    [
        pytest.param("ddp_resnet", "--num-workers=-1", "num_workers option should be non-negative", marks=THOROUGH),
        ("torchrun_bert", "--model=bert-huge", "invalid choice: 'bert-huge'"),
        pytest.param("keras_multi_worker", "--batch-size-per-replica=0", "size must be greater", marks=THOROUGH),
    ],
)
def test_a_script_that_fails_fails_its_training_and_shows_why(
    name: str, argument: str, cause: str, tmp_path: Path
) -> None:
    finished = kubetrain(
        *("train", PIPELINES[name], "--code", SCRIPTS, "--data", tmp_path, "--output", tmp_path / "output"),
        *("--set", "pods.max_restarts=0", "--set", "pods.workers=2", "--set", "train.metrics_port=0"),
        *settings_of(name, argument),
        cwd=tmp_path,
    )
    assert finished.exit_code == 1
    assert cause in re.findall(r"^error: .*", finished.output, re.MULTILINE)[-1]


@THOROUGH
@pytest.mark.parametrize("name", ["ddp_resnet", "torchrun_bert", "keras_multi_worker"])
def test_a_script_that_saves_by_the_session_resumes_after_a_crash(name: str, tmp_path: Path) -> None:
    """The diff beside each script has the lines that save and resume, and a crash in the second epoch."""
    code = tmp_path / "code"
    code.mkdir()
    (code / f"{name}.py").write_text((SCRIPTS / f"{name}.py").read_text())
    subprocess.run(["git", "apply", SCRIPTS / f"{name}.diff"], cwd=code, check=True)
    finished = run(tmp_path, name, code)
    assert finished.exit_code == 0, finished.output
    assert published_files(tmp_path) == MODELS[name]
    (output,) = (tmp_path / "kubetrain-workspace" / "output").iterdir()
    steps = [row["step"] for row in read_metrics(TrainingOutput(output).metrics)]
    assert steps == sorted(steps)
    assert len(complete_checkpoints(TrainingOutput(output).checkpoints)) == 2
