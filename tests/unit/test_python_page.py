"""The Python on docs/python.md has types and, apart from the runs on this machine, is executed."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.kfp_runs import Step, kfp_without_cluster, workflow

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "python.md").read_text(), re.S)


def test_the_python_of_the_page_has_types(tmp_path: Path) -> None:
    (tmp_path / "page.py").write_text("\n".join(BLOCKS))
    command = [sys.executable, "-m", "mypy", "--config-file", "pyproject.toml", str(tmp_path / "page.py")]
    done = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert done.stdout.startswith("Success: no issues"), done.stdout


def test_the_python_of_the_page_works(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "compiled", "compiled")
    Path("flowers.yaml").write_text("{data: {uri: s3://my-bucket/flowers}, model: {uri: s3://my-bucket/models}}")
    evaluated, promoted = Step(task="evaluate-model"), Step(task="promote-model", started=10, ended=12)
    (submits, schedules, runs_here, runs_function, handles_errors) = BLOCKS
    assert "kubetrain.run(" in runs_here
    assert "kubetrain.run(" in runs_function
    with kfp_without_cluster() as server:
        monkeypatch.setenv("KUBETRAIN_KFP_ENDPOINT", server.endpoint)
        server.next_story = [workflow([evaluated, promoted], "SUCCEEDED")]
        server.logs[evaluated.pods()[0]] = 'metrics: {"accuracy": 0.9}\n'
        server.logs[promoted.pods()[0]] = "published as s3://my-bucket/models/v1/, now the latest\n"
        names: dict[str, Any] = {}
        exec(submits, names)
        assert capsys.readouterr().out.endswith("{'accuracy': 0.9} s3://my-bucket/models/v1/\n")
        exec(schedules, names)
        assert server.schedules == []
        server.add("runs", {"display_name": "nightly", "state": "CANCELED"})
        exec(handles_errors, names)
        assert capsys.readouterr().out.endswith("was canceled\n")
