"""Both trainers as jobs of two real processes: killed and resumed, with built-in models and a custom task."""

import gzip
import signal
from pathlib import Path

import psutil
import pytest

from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from support.cli import kubetrain, processes_of, read_until, start
from support.outside import tensorboard_scalars
from support.process_groups import start_python
from support.tiers import ONE_IN_CI
from support.training import largest_difference, newest

pytestmark = pytest.mark.slow

FRAMEWORKS = ["pytorch", "tensorflow"]
SHORT = ("--set", "train.epochs=3", "--set", "train.checkpoint_every=10", "--set", "train.log_every=5")


def train_arguments(framework: str, data: Path, output: Path, run_id: str) -> list[str]:
    return ["train", f"train-{framework}", "--data", str(data), "--output", str(output), "--run-id", run_id, *SHORT]


def training_processes(output: Path) -> list[psutil.Process]:
    """Return the processes that train, without their launchers."""
    commands = {process: " ".join(process.cmdline()) for process in processes_of(output)}
    return [process for process, command in commands.items() if ".train " in command and ".launch " not in command]


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_run_killed_in_the_middle_of_an_epoch_ends_like_one_that_was_not(
    framework: str, digits: Path, tmp_path: Path
) -> None:
    """With PyTorch, the undisturbed run has both its processes in one pod."""
    settings = ("--set", "train.ema_decay=0.9", "--set", "train.recipe=strong")
    in_one_pod = ("--set", "pods.workers=1", "--set", "pods.processes=2") if framework == "pytorch" else ()
    undisturbed = kubetrain(
        *train_arguments(framework, digits, tmp_path / "output", "undisturbed"), *settings, *in_one_pod
    )
    assert undisturbed.exit_code == 0, undisturbed.output

    run = start(*train_arguments(framework, digits, tmp_path / "output", "killed"), *settings)
    seen = read_until(run, "[kubetrain] step=35/60")  # 20 steps per epoch: the last checkpoint is that of step 30
    victims = training_processes(tmp_path / "output" / "killed")
    assert len(victims) == 2
    victims[-1].send_signal(signal.SIGKILL)
    rest, _ = run.communicate(timeout=120)

    assert run.returncode == 0, seen + rest
    assert "; restarting" in rest
    assert "resumes from" in rest
    output = tmp_path / "output"
    one, other = newest(output / "undisturbed"), newest(output / "killed")
    assert one.step == other.step == 60
    assert one.manifest["world_size"] == other.manifest["world_size"] == 2
    assert one.progress == other.progress
    assert largest_difference(one, other) < 1e-6
    steps = [row["step"] for row in read_metrics(output / "killed" / "metrics.jsonl") if "loss" in row]
    assert steps == list(range(5, 61, 5)), "each step is measured once"
    charted = tensorboard_scalars(output / "killed" / "tensorboard")
    assert [step for step, _ in charted["loss"]] == steps
    assert processes_of(tmp_path / "output") == []


@pytest.fixture(scope="module", params=ONE_IN_CI)
def finished_run(request: pytest.FixtureRequest, digits: Path, tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The arguments of a completed run of one process."""
    output = tmp_path_factory.mktemp("output")
    arguments = [*train_arguments(request.param, digits, output, "first"), "--set", "pods.workers=1"]
    finished = kubetrain(*arguments)
    assert finished.exit_code == 0, finished.output
    return arguments


def test_a_run_resumes_from_another_runs_checkpoint(finished_run: list[str]) -> None:
    output = Path(finished_run[finished_run.index("--output") + 1])
    before = newest(output / "first")
    second = kubetrain(
        *("second" if each == "first" else each for each in finished_run),
        *(
            "--set",
            "train.resume_from=first",
            "--set",
            f"train.max_steps={before.step + 10}",
            "--set",
            "train.epochs=4",
        ),
        *("--set", "train.ema_decay=0.9"),  # the average starts from the existing weights
    )
    assert second.exit_code == 0, second.output
    assert f"resumes from {before.path}" in second.output
    assert [checkpoint.step for checkpoint in complete_checkpoints(TrainingOutput(output / "second").checkpoints)] == [
        before.step + 10
    ]


def test_the_same_run_again_reuses_its_result_and_a_different_one_is_refused(finished_run: list[str]) -> None:
    output = Path(finished_run[finished_run.index("--output") + 1])
    before = written(output / "first")
    again = kubetrain(*finished_run)
    assert again.exit_code == 0
    assert "has already succeeded: its log follows" in again.output
    assert written(output / "first") == before, "nothing was trained"
    other = kubetrain(*finished_run, "--set", "train.epochs=4")
    assert other.exit_code == 1
    assert "run first has other settings (different: train.epochs): start it under another --run-id" in other.output


def written(output: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in output.rglob("*") if path.is_file()}


def test_a_failed_run_started_again_resumes(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(
        "import os, torch\n"
        "from kubetrain_trainer.pytorch_ddp.task import build_task as built_in\n"
        "from dataclasses import replace\n"
        "def build(config, data_dir):\n"
        "    task = built_in(replace(config, model='digits_cnn'), data_dir)\n"
        "    steps = []\n"
        "    def loss(outputs, targets):\n"
        "        steps.extend([1] * torch.is_grad_enabled())\n"
        "        if len(steps) > 12 and not os.path.exists('mended'):\n"
        "            raise RuntimeError('broken on purpose')\n"
        "        return task.loss(outputs, targets)\n"
        "    return replace(task, loss=loss)\n"
    )
    arguments = ["train", "--data", tmp_path, "--output", "output", "--run-id", "run", "--set", "pods.workers=1"]
    arguments += ["--set", "pods.max_restarts=0", "--set", "data.format=synthetic", "--set", "model.name=own:build"]
    arguments += ["--set", "train.epochs=2", "--set", "train.checkpoint_every=8", "--set", "data.synthetic.samples=320"]
    failed = kubetrain(*arguments, cwd=tmp_path)
    assert failed.exit_code == 1
    assert "master-0: RuntimeError: broken on purpose" in failed.output
    assert "raise RuntimeError('broken on purpose')" in failed.output, "the log's last lines"
    (tmp_path / "mended").touch()
    again = kubetrain(*arguments, cwd=tmp_path)
    assert again.exit_code == 0, again.output
    assert "resumes from" in again.output
    assert newest(tmp_path / "output" / "run").step == 20


SKIP_NO_CHECKPOINT = """
import sys
from importlib import import_module
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.processes.entry_point import training_arguments

CheckpointWriter.is_free = lambda writer, step: writer.wait() is None
import_module(sys.argv.pop(1)).train(training_arguments(""))
"""


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_checkpoints_may_be_saved_more_often_than_validated(framework: str, tmp_path: Path) -> None:
    config = TrainConfig(
        data="synthetic",
        synthetic={"samples": 320},
        image_size=8,
        epochs=3,
        checkpoint_every=10,
        validate_every=20,
        metrics_port=0,
    )
    flags = ("--data-dir", tmp_path, "--output-dir", tmp_path / "run", *config.to_flags())
    training = start_python("-c", SKIP_NO_CHECKPOINT, f"{package_of(framework)}.train", *flags, cwd=tmp_path)
    output, _ = training.communicate(timeout=120)
    assert training.returncode == 0, output
    saved = complete_checkpoints(TrainingOutput(tmp_path / "run").checkpoints)
    assert [(each.step, each.is_validated) for each in saved] == [(10, True), (20, False), (30, True)]


@pytest.mark.thorough
def test_samples_that_other_processes_load_train_the_same(digits: Path, tmp_path: Path) -> None:
    """Loading processes must not be forked from the training, whose threads could make them hang."""
    for workers in (0, 2):
        arguments = train_arguments("pytorch", digits, tmp_path, f"loaders-{workers}")
        finished = kubetrain(
            *arguments, "--set", f"train.loader_workers={workers}", "--set", "train.checkpoint_every=2"
        )
        assert finished.exit_code == 0, finished.output
    assert largest_difference(newest(tmp_path / "loaders-0"), newest(tmp_path / "loaders-2")) < 1e-6


@pytest.mark.parametrize(
    ("framework", "model"),
    [
        ("pytorch", "torchvision:resnet18"),
        pytest.param("pytorch", "torchvision:resnet50", marks=pytest.mark.thorough),
        pytest.param("tensorflow", "keras:resnet18", marks=pytest.mark.thorough),
    ],
)
def test_models_by_name_train_on_synthetic_data(framework: str, model: str, tmp_path: Path) -> None:
    finished = kubetrain(
        *("train", f"train-{framework}", "--data", tmp_path, "--output", tmp_path, "--set", "pods.workers=1"),
        *("--set", "data.format=synthetic", "--set", "data.synthetic.samples=32", "--set", "data.image_size=32"),
        *("--set", f"model.name={model}", "--set", "train.batch_size=8", "--set", "train.max_steps=2"),
    )
    assert finished.exit_code == 0, finished.output
    assert "saved step-00000002" in finished.output


@pytest.mark.thorough
def test_a_custom_task_trains_without_a_fork(tmp_path: Path) -> None:
    """The example: a text transformer on Python's own language reference."""
    example = Path(__file__).parents[2] / "examples" / "own_task"
    import subprocess
    import sys

    subprocess.run([sys.executable, example / "make_text.py", tmp_path / "text"], check=True)
    finished = kubetrain(
        *("run", "text.yaml", "--workspace", tmp_path / "workspace", "--set", f"data.uri={tmp_path / 'text'}"),
        *("--set", "model.args={width: 32, layers: 1}", "--set", "train.epochs=2"),
        cwd=example,
    )
    assert finished.exit_code == 0, finished.output
    evaluation = TrainingOutput(next((tmp_path / "workspace" / "output").iterdir())).read_evaluation()
    text = "".join(path.read_text() for path in (tmp_path / "text" / "test").iterdir())
    always_a_space = text.count(" ") / len(text)
    assert evaluation["metrics"]["accuracy"] > 1.5 * always_a_space
    assert "confusion" not in evaluation


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_trace_of_the_wanted_steps_is_in_the_output(framework: str, tmp_path: Path) -> None:
    settings = ("--set", "data.format=synthetic", "--set", "train.max_steps=4", "--set", "train.profile_steps=2:3")
    job = ("train", f"train-{framework}", "--output", tmp_path, "--run-id", "run", "--set", "pods.workers=1")
    trained = kubetrain(*job, *settings, "--set", "train.metrics_port=0")
    assert trained.exit_code == 0, trained.output
    assert f"profile of steps 2 to 3: {tmp_path}/run/profile" in trained.output
    (trace,) = (path for path in (tmp_path / "run" / "profile").rglob("*") if path.suffix in (".gz", ".pb"))
    content = trace.read_bytes()
    shown = gzip.decompress(content) if trace.suffix == ".gz" else content
    assert {"pytorch": b"aten::convolution_backward", "tensorflow": b"Conv2DBackpropFilter"}[framework] in shown
