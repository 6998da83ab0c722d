"""Outputs that an earlier release wrote are resumed, evaluated and collected by the code of today."""

import json
import shutil
from pathlib import Path

import pytest

from kubetrain_components.collect_checkpoint.collect import collect_checkpoint
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.training_output import TrainingOutput
from support.own_tasks import TASKS
from support.process_groups import start_python

RECORDED = Path(__file__).parent / "recorded" / "output_of_0_1_0"
SETTINGS = ["--model", "own:build", "--model-args", '{"megabytes": 0}', "--metric", "loss"]
SETTINGS += ["--batch-size", "8", "--max-steps", "4", "--checkpoint-every", "2"]
FRAMEWORKS = ["pytorch", pytest.param("tensorflow", marks=pytest.mark.slow)]


def recorded(framework: str, state: str, folder: Path) -> TrainingOutput:
    (folder / "own.py").write_text(TASKS[framework])
    return TrainingOutput(Path(shutil.copytree(RECORDED / framework / state, folder / "output")))


def run(framework: str, program: str, folder: Path, *settings: str) -> str:
    module = f"{package_of(framework)}.{program}"
    process = start_python("-m", module, "--data-dir", ".", "--output-dir", "output", *settings, cwd=folder)
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    return output


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_killed_training_resumes_though_a_setting_was_added_since(framework: str, tmp_path: Path) -> None:
    output = recorded(framework, "killed", tmp_path)
    record = output.read_config()
    del record["config"]["label_smoothing"]  # as if this setting were newer than the recorded release
    (output.path / "config.json").write_text(json.dumps(record))
    assert "resumes from output/checkpoints/step-00000002" in run(framework, "train", tmp_path, *SETTINGS)
    assert output.read_result() is not None
    assert output.read_export()["step"] in (2, 4)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_finished_training_is_evaluated_and_collected(framework: str, tmp_path: Path) -> None:
    output = recorded(framework, "finished", tmp_path)
    run(framework, "evaluate", tmp_path)
    assert output.read_evaluation()["samples"] == 16
    collected = collect_checkpoint(output, tmp_path / "collected")
    assert collected["manifest_sha256"] == output.read_evaluation()["manifest_sha256"]
