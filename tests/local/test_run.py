"""`kubetrain run`: all stages with real processes and a real S3 server, for both frameworks."""

import json
import os
from pathlib import Path

import pytest

from kubetrain_components.run.metrics_artifact import numbers_in
from kubetrain_pipelines.cli.verify import verify_folder
from kubetrain_pipelines.kubeflow.run_results import published_in
from support.cli import Finished, interrupt, kubetrain, processes_of, read_until, run_json, start

STAGES = [
    "prepare_storage",
    "sync_dataset",
    "launch_training",
    "collect_checkpoint",
    "evaluate_model",
    "promote_model",
]
SHORT = ("--set", "train.max_steps=5", "--set", "pods.workers=1")
CANARY = f"canary-{os.urandom(8).hex()}"
LIBRARIES = "random queue types secrets tokenize typing numpy torch tensorflow moto kfp".split()


@pytest.fixture(scope="module")
def workspace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a path that kfp.local would break: it rewrites "python3" in arguments and quotes nothing."""
    return tmp_path_factory.mktemp("a python3 workspace") / "with spaces"


@pytest.fixture(scope="module")
def current_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with files that are named like libraries, and record that they were run."""
    folder = tmp_path_factory.mktemp("shared")
    for name in LIBRARIES:
        (folder / f"{name}.py").write_text("open(__file__ + '.was-run', 'w')\nfrom os import *\n")
    return folder


@pytest.fixture(scope="module")
def first(workspace: Path, current_folder: Path) -> tuple[Finished, dict]:
    finished = kubetrain("run", "--workspace", workspace, cwd=current_folder, MY_SECRET=CANARY)
    return finished, run_json(workspace)


@pytest.fixture(scope="module")
def second(workspace: Path, current_folder: Path, first: object) -> tuple[Finished, dict]:
    settings = ("--set", "train.epochs=8", "--set", "pods.launcher=trainer")
    finished = kubetrain("run", "train-tensorflow", "--workspace", workspace, *settings, cwd=current_folder)
    return finished, run_json(workspace)


@pytest.mark.parametrize("which", ["first", pytest.param("second", marks=[pytest.mark.slow, pytest.mark.thorough])])
class TestBothFrameworks:
    @pytest.fixture
    def run(self, which: str, request: pytest.FixtureRequest) -> tuple[Finished, dict]:
        return request.getfixturevalue(which)

    def test_it_trains_a_good_model(self, run: tuple[Finished, dict]) -> None:
        finished, record = run
        assert finished.exit_code == 0, finished.output
        assert record["status"] == "succeeded"
        assert record["evaluation"]["accuracy"] >= 0.97
        assert record["evaluation"]["samples"] == 270
        assert record["training"]["world_size"] == 2

    def test_every_stage_ran_in_order_and_took_its_time(self, run: tuple[Finished, dict]) -> None:
        _, record = run
        assert [(stage["name"], stage["status"]) for stage in record["stages"]] == [
            (name, "finished") for name in STAGES
        ]
        assert all(stage["seconds"] > 0 for stage in record["stages"] if stage["name"] != "collect_checkpoint")
        assert sum(stage["seconds"] for stage in record["stages"]) <= record["seconds"]

    def test_no_file_of_the_current_folder_is_run(self, run: tuple[Finished, dict], current_folder: Path) -> None:
        assert sorted(path.name for path in current_folder.iterdir()) == sorted(f"{name}.py" for name in LIBRARIES)

    def test_the_model_is_at_the_reported_path(self, run: tuple[Finished, dict]) -> None:
        finished, record = run
        folder = Path(record["model"]["path"])
        model = json.loads((folder / "model.json").read_text())
        assert model == json.loads((folder.parent / "latest.json").read_text())
        assert model["run_id"] == record["run_id"]
        assert model["metrics"]["accuracy"] == record["evaluation"]["accuracy"]
        assert record["model"]["uri"] in finished.output
        assert str(folder) in finished.output
        for file in model["files"]:
            assert (folder / file["name"]).stat().st_size == file["size"]
        page = record["model"]["publication"]
        assert page in finished.output
        assert f'kubetrain.load_model("{folder.as_uri()}")' in Path(page).read_text(), "the S3 server has ended"

    def test_the_progress_is_shown_as_plain_lines_in_a_log(self, run: tuple[Finished, dict]) -> None:
        finished, _ = run
        assert "launch_training: step " in finished.output
        assert "samples/s" in finished.output
        assert "\x1b" not in finished.output

    def test_the_report_is_written(self, run: tuple[Finished, dict], workspace: Path) -> None:
        assert (workspace / "report.html").stat().st_size > 20_000
        assert ">Network<" in (workspace / "report.html").read_text()

    def test_nothing_is_left_running(self, run: tuple[Finished, dict], workspace: Path) -> None:
        assert processes_of(workspace) == []


def test_the_steps_write_their_metrics_and_the_model_as_python_reads_them(workspace: Path, first: object) -> None:
    """A cluster's log has the same lines, not indented."""
    log = "\n".join(map(str.lstrip, (workspace / "logs" / "pipeline.log").read_text().splitlines()))
    last = run_json(workspace)
    assert numbers_in(log) == last["evaluation"]["metrics"]
    assert published_in(log) == last["model"]["uri"]


@pytest.mark.slow
@pytest.mark.thorough
def test_only_the_first_run_downloads_the_dataset(
    first: tuple[Finished, dict],
    second: tuple[Finished, dict],
) -> None:
    assert first[1]["dataset"]["downloaded"] == first[1]["dataset"]["objects"] == 1797
    assert second[1]["dataset"]["downloaded"] == 0
    assert second[1]["dataset"]["digest"] == first[1]["dataset"]["digest"]
    assert "1797 objects, 1797 downloaded" in first[0].output
    assert "nothing to download" in second[0].output


@pytest.mark.slow
@pytest.mark.thorough
def test_a_launcher_makes_no_difference_on_this_machine(workspace: Path, second: object) -> None:
    log = (workspace / "logs" / "pipeline.log").read_text()
    assert "launcher: training-operator (this machine" in log


@pytest.mark.slow
@pytest.mark.thorough
def test_everything_that_runs_leave_behind_verifies(workspace: Path, second: object) -> None:
    outputs = list((workspace / "output").iterdir())
    assert len(outputs) == 2
    for folder in (workspace / "staging", *outputs):
        verified = verify_folder(folder)
        assert verified
        assert not [problem for each in verified for problem in each.problems]


def test_the_export_opens_without_our_code(workspace: Path, first: tuple[Finished, dict]) -> None:
    import torch

    weights = torch.load(Path(first[1]["model"]["path"]) / "model.pt", weights_only=True)
    assert all(tensor.device.type == "cpu" for tensor in weights.values())
    assert not [name for name in weights if name.startswith("module.")]


@pytest.mark.slow
def test_an_accuracy_below_the_minimum_fails_the_run_but_metrics_and_report_are_kept(
    tmp_path: Path, digits: Path
) -> None:
    finished = kubetrain(
        *("run", "--workspace", tmp_path, "--set", f"data.uri={digits}"),
        *(*SHORT, "--set", "model.gate=accuracy>=1"),
    )
    record = run_json(tmp_path)
    accuracy = record["evaluation"]["accuracy"]
    assert finished.exit_code == 1
    assert f"test accuracy {accuracy:.4f} is below 1.0000 by {1 - accuracy:.4f}" in finished.output
    assert (record["status"], record["stages"][-1]["status"]) == ("failed", "failed")
    assert record["model"] == {}
    assert "Failed in promote_model" in (tmp_path / "report.html").read_text()
    assert not any((tmp_path / "models").rglob("*.json")), "nothing was published"


def crashing_run(folder: Path, data: Path, failure: str) -> tuple[Finished, dict]:
    (folder / "crashing_task.py").write_text(f"def build(config, data_dir):\n    {failure}\n")
    finished = kubetrain(
        *("run", "--workspace", "workspace", "--set", f"data.uri={data}"),
        *(*SHORT, "--set", "model.name=crashing_task:build"),
        cwd=folder,
    )
    assert finished.exit_code == 1
    assert "launch_training failed" in finished.output.splitlines()[-1]
    assert "Failed in launch_training" in (folder / "workspace" / "report.html").read_text()
    assert processes_of(folder) == []
    return finished, run_json(folder / "workspace")


def test_a_training_that_cannot_start_fails_the_run_with_its_error(tmp_path: Path, digits: Path) -> None:
    finished, record = crashing_run(
        tmp_path,
        digits,
        "from kubetrain_trainer.errors import KubetrainError; raise KubetrainError('nothing to build')",
    )
    assert record["error"] == "launch_training failed: master-0: nothing to build"
    assert "nothing to build" in finished.output


@pytest.mark.slow
@pytest.mark.thorough
def test_a_training_that_crashes_at_each_restart_fails_the_run_with_its_error_and_last_lines(
    tmp_path: Path, digits: Path
) -> None:
    finished, record = crashing_run(tmp_path, digits, "return 1 / 0")
    assert "ZeroDivisionError: division by zero" in record["error"]
    assert "return 1 / 0" in "\n".join(record["log_tail"])
    assert "ZeroDivisionError" in finished.output


def test_a_missing_split_is_reported_before_the_training(tmp_path: Path, digits: Path) -> None:
    finished = kubetrain(
        *("run", "--workspace", tmp_path, "--set", f"data.uri={digits}", "--set", "data.test_split=tset")
    )
    assert finished.exit_code == 1
    assert f"{digits} has no folder 'tset' for data.test_split (it has: test, train, val)" in finished.output
    assert run_json(tmp_path)["stages"][-1]["name"] == "sync_dataset"


def test_a_second_concurrent_run_in_a_workspace_is_refused(tmp_path: Path) -> None:
    import fcntl

    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        finished = kubetrain("run", "--workspace", tmp_path)
    assert finished.exit_code == 1
    assert "another run is using the workspace" in finished.output


@pytest.mark.slow
def test_the_users_aws_settings_do_not_reach_the_embedded_server(tmp_path: Path) -> None:
    """A missing profile would stop boto3, and a proxy would swallow requests to the loopback interface."""
    run = start(
        *("run", "--workspace", tmp_path),
        AWS_PROFILE="no-such-profile",
        AWS_SESSION_TOKEN="token",
        HTTP_PROXY="http://127.0.0.1:9",
        http_proxy="http://127.0.0.1:9",
    )
    read_until(run, "sync_dataset: finished")
    interrupt(run)


def test_no_secret_of_the_environment_is_written_down(workspace: Path, first: tuple[Finished, dict]) -> None:
    written = [path for path in workspace.rglob("*") if path.is_file() and CANARY.encode() in path.read_bytes()]
    assert written == []
    assert CANARY not in first[0].output


@pytest.mark.slow
def test_tensorflow_workers_reach_one_another_past_a_proxy(tmp_path: Path) -> None:
    nowhere = dict.fromkeys(("http_proxy", "https_proxy"), "http://127.0.0.1:9")
    data = ("--set", "data.format=synthetic", "--set", "train.max_steps=2")
    finished = kubetrain("train", "train-tensorflow", "--output", tmp_path, *data, **nowhere)
    assert finished.exit_code == 0, finished.output
