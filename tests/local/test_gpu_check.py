"""The check of a GPU machine, in miniature where there is no GPU."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parent.parent.parent
pytestmark = [pytest.mark.slow, pytest.mark.skipif(torch.cuda.is_available(), reason="the check itself measures here")]


def check(*arguments: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'trainer'}:{ROOT / 'benchmarks/trainers'}"}
    program = [sys.executable, str(ROOT / "benchmarks/gpu/check.py"), *arguments]
    return subprocess.run(program, env=environment, capture_output=True, text=True, check=False)


def test_without_a_gpu_it_measures_nothing(tmp_path: Path) -> None:
    result = check("--json", str(tmp_path / "figures.json"))
    assert (result.returncode, result.stdout) == (2, "")
    assert "PyTorch finds no GPU on this machine" in result.stderr


def test_an_unknown_measurement_is_named() -> None:
    result = check("savings")
    assert result.returncode == 2
    assert "unknown measurement savings: choose from lifecycle, " in result.stderr


@pytest.mark.thorough
def test_it_prints_and_writes_what_it_measured(tmp_path: Path) -> None:
    result = check("--miniature", "--json", str(tmp_path / "figures.json"), "hang", "tests")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "| hang in Python: named rightly (1) or not (0) | 1 | at least 1 |" in result.stdout
    written = json.loads((tmp_path / "figures.json").read_text())
    assert written["machine"].startswith("no GPU, ")
    assert [*written["figures"]] == ["hang", "tests"]
    assert all(figure["value"] > 0 for figure in written["figures"]["hang"])


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["lifecycle", "throughput", "files", "transformer", "graphs", "saving"])
def test_the_other_measurements_end(name: str, tmp_path: Path) -> None:
    result = check("--miniature", "--json", str(tmp_path / "figures.json"), name)
    assert result.returncode == 0, result.stdout + result.stderr
    assert json.loads((tmp_path / "figures.json").read_text())["figures"][name]


@pytest.mark.thorough
def test_a_failed_measurement_fails_the_check_and_keeps_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "none")
    result = check("--miniature", "--json", str(tmp_path / "figures.json"), "hang", "tests")
    assert result.returncode == 1
    assert "invalid literal for int() with base 10: 'none'" in result.stdout + result.stderr
    assert "failed: hang; what they printed is above" in result.stderr
    assert json.loads((tmp_path / "figures.json").read_text())["figures"] == {"hang": [], "tests": []}
