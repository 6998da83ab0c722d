"""The examples of scripts of your own, by the commands that they show, and drained in the middle of their training."""

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from signal import SIGTERM

import pytest

from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from support.cli import kubetrain, processes_of, read_until, run_json, start
from support.pods import pod_processes

EXAMPLES = Path(__file__).parents[2] / "examples"
THOROUGH = pytest.mark.thorough
MODELS = {
    "ddp_script": "model.pt",
    "lightning": "model.pt",
    "huggingface": "model.safetensors",
    "keras": "model.keras",
}
PROCESSES = {"ddp_script": 4, "lightning": 4}
"""By which the 270 images of the test split cannot be divided. Two are the default."""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all examples, so that they download the digits once."""
    return tmp_path_factory.mktemp("workspace")


def command_of(example: str) -> list[str]:
    """Return the arguments of the command that the example's script shows."""
    (command,) = re.findall(r"^    kubetrain (.*)$", (EXAMPLES / example / "train.py").read_text(), re.M)
    return shlex.split(command)


@pytest.mark.parametrize(
    "example",
    ["lightning", *(pytest.param(each, marks=THOROUGH) for each in ("ddp_script", "huggingface", "keras"))],
)
def test_an_example_publishes_a_model_by_the_command_that_it_shows(example: str, workspace: Path) -> None:
    settings = ("model.gate=accuracy>=0.8", f"pods.workers={PROCESSES.get(example, 2)}")
    flags = [part for setting in settings for part in ("--set", setting)]
    finished = kubetrain(*command_of(example), "--workspace", workspace, *flags, cwd=EXAMPLES / example)
    assert finished.exit_code == 0, finished.output
    record = run_json(workspace)
    right = 270 * record["evaluation"]["metrics"]["accuracy"]
    assert right == pytest.approx(round(right), abs=1e-3), "each test image counts once"
    assert (Path(record["model"]["path"]) / MODELS[example]).is_file()
    output = TrainingOutput(workspace / "output" / record["run_id"])
    assert "loss" in {name for row in read_metrics(output.metrics) for name in row}


@THOROUGH
@pytest.mark.parametrize(
    "settings",
    [
        ("train.entry=train.py --model={model}",),
        ("model.name=task:build", "model.args.model={model}", "train.optimizer=adamw", "train.learning_rate=0.003"),
    ],
    ids=["script", "task"],
)
def test_a_model_in_a_folder_is_fine_tuned_without_a_network(
    settings: tuple[str, ...], workspace: Path, tmp_path: Path
) -> None:
    example, model = EXAMPLES / "huggingface", tmp_path / "model"
    subprocess.run([sys.executable, example / "pretrained.py", model], check=True)
    assert (model / "model.safetensors").is_file()
    wanted = (*(each.format(model=model) for each in settings), "pods.env.HF_HUB_OFFLINE=1", "model.gate=accuracy>=0.8")
    flags = [part for each in wanted for part in ("--set", each)]
    finished = kubetrain("run", "--code", ".", "--workspace", workspace, *flags, cwd=example, HF_HUB_OFFLINE="1")
    assert finished.exit_code == 0, finished.output


@THOROUGH
def test_keras_leaves_out_the_training_images_that_would_not_reach_every_process(digits: Path, tmp_path: Path) -> None:
    data = Path(shutil.copytree(digits, tmp_path / "data"))
    for image in sorted(data.glob("train/*/*.png"))[2 * 64 + 1 :]:
        image.unlink()
    output = TrainingOutput(tmp_path / "output" / "run")
    finished = kubetrain(
        *("train", "train-tensorflow", "--data", data, "--output", output.path.parent, "--run-id", "run"),
        *("--set", "pods.workers=2", "--set", "train.metrics_port=0", "--set", "train.entry=train.py --epochs=1"),
        cwd=EXAMPLES / "keras",
    )
    assert finished.exit_code == 0, finished.output
    assert (output.export / "model.keras").is_file()


@THOROUGH
@pytest.mark.parametrize(
    ("example", "framework"), [("lightning", "pytorch"), ("huggingface", "pytorch"), ("keras", "tensorflow")]
)
def test_an_example_loses_no_step_when_a_pod_is_drained(
    example: str, framework: str, digits: Path, tmp_path: Path
) -> None:
    run = start(
        *("train", f"train-{framework}", "--data", digits, "--output", tmp_path / "output", "--run-id", "run"),
        *("--set", "pods.workers=2", "--set", "train.metrics_port=0", "--set", "train.entry=train.py --epochs=6"),
        cwd=EXAMPLES / example,
    )
    seen = read_until(run, "[kubetrain] step=30 ")
    pod_processes("worker-0", tmp_path / "output")[0].send_signal(SIGTERM)
    rest, _ = run.communicate(timeout=170)
    assert run.returncode == 0, seen + rest
    assert rest.count("exit code 143); restarting") == 2, rest
    before, _, after = rest.partition("exit code 143)")
    *_, saved = re.findall(r"saved (step-\d+)", before)
    assert set(re.findall(r"resumes from .*/(step-\d+)", after)) == {saved}
    rows = list(read_metrics(TrainingOutput(tmp_path / "output" / "run").metrics))
    assert [row["step"] for row in rows] == sorted(row["step"] for row in rows)
    losses = {row["step"]: row["loss"] for row in rows if "loss" in row}
    later = [loss for step, loss in losses.items() if step > int(saved.removeprefix("step-"))]
    assert max(later) < 0.5 * max(losses.values()), "it continued with the weights that it had saved"
    assert processes_of(tmp_path) == []
