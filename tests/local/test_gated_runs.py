"""`kubetrain run` with a gate: what is published, what is not, and what both models are shown as."""

import json
from pathlib import Path

import pytest

from kubetrain_components.run.metrics_artifact import numbers_in
from support.cli import Finished, kubetrain, run_json

pytestmark = [pytest.mark.slow, pytest.mark.thorough]


def run(workspace: Path, data: Path, gate: str, steps: int) -> tuple[Finished, dict]:
    settings = ("--set", f"data.uri={data}", "--set", "pods.workers=1", "--set", f"train.max_steps={steps}")
    finished = kubetrain("run", "--workspace", workspace, *settings, "--set", f"model.gate={gate}")
    return finished, run_json(workspace)


def test_a_worse_model_is_not_published_unless_the_gate_allows_it(tmp_path: Path, digits: Path) -> None:
    first, record = run(tmp_path, digits, "accuracy>=0.5, not worse than latest", steps=80)
    assert first.exit_code == 0, first.output
    assert "no model is published yet to compare with" in first.output
    version, accuracy = record["model"]["version"], record["evaluation"]["accuracy"]

    worse, record = run(tmp_path, digits, "loss<0.001, not worse than latest by 0.005", steps=1)
    assert worse.exit_code == 1
    assert record["evaluation"]["latest"]["metrics"]["accuracy"] == pytest.approx(accuracy)
    measured = record["evaluation"]["accuracy"]
    missed = (
        f"test accuracy {measured:.4f} is worse by {accuracy - measured:.4f} than {accuracy:.4f} of the latest model"
    )
    assert missed in record["error"]
    assert f"loss {record['evaluation']['loss']:.4f} is above 0.0010 by" in record["error"]
    shown = f"test accuracy: {measured:.4f}; of the latest model, {version}: {accuracy:.4f}"
    assert shown in worse.output
    assert shown in (tmp_path / "report.html").read_text()
    latest = tmp_path / "models" / "train-pytorch" / "latest.json"
    assert json.loads(latest.read_text())["version"] == version

    allowed, record = run(tmp_path, digits, "not worse than latest by 1", steps=1)
    assert allowed.exit_code == 0, allowed.output
    assert json.loads(latest.read_text())["version"] == record["model"]["version"] != version
    log = (tmp_path / "logs" / "pipeline.log").read_text()
    assert numbers_in("\n".join(map(str.lstrip, log.splitlines()))) == record["evaluation"]["metrics"]
    assert f"is not worse than {accuracy:.4f} of the latest model, {version} (by up to 1.0000 is allowed)" in log
