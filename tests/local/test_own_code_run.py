"""`--code DIR` with a script of your own: a whole run on this machine, and wrong uses."""

import json
from pathlib import Path

import pytest

from support.cli import kubetrain, run_json

SCRIPT = """
import json, os
from pathlib import Path
from team.weights import WEIGHTS

output = Path(os.environ["KUBETRAIN_OUTPUT"])
if os.environ["RANK"] == "0":
    (output / "export").mkdir()
    (output / "export" / "weights").write_text(WEIGHTS)
    (output / "metrics.json").write_text(json.dumps({"accuracy": 0.75}))
"""
ENTRY = ("--set", f"entry={json.dumps({'script': 'train.py'})}")


@pytest.fixture
def code(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "team").mkdir(parents=True)
    (folder / "train.py").write_text(SCRIPT)
    (folder / "team" / "weights.py").write_text("WEIGHTS = 'of the archive'")
    return folder


@pytest.mark.slow
def test_a_run_publishes_what_the_script_of_the_archive_wrote(code: Path, tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers.txt").write_text("1 2 3")
    (tmp_path / "team").mkdir()
    (tmp_path / "team" / "weights.py").write_text("WEIGHTS = 'of the working directory'")
    arguments = ("run", "--workspace", "workspace", "--code", code, "--set", "dataset_uri=data", *ENTRY)
    finished = kubetrain(*arguments, "--set", "min_accuracy=0.7", cwd=tmp_path)
    assert finished.exit_code == 0, finished.output
    assert "2 files of " in finished.output
    record = run_json(tmp_path / "workspace")
    assert record["evaluation"]["metrics"] == {"accuracy": 0.75}
    assert (Path(record["model"]["path"]) / "weights").read_text() == "of the archive"
    refused = kubetrain(*arguments, "--set", "min_accuracy=0.8", cwd=tmp_path)
    assert refused.exit_code == 1
    assert "test accuracy 0.7500 is below min_accuracy 0.8000" in refused.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("run", "--set", f"code={'0' * 32}"), "code is set, which this machine does not fetch"),
        (("run", "--code", "absent"), "--code absent is not a folder"),
        (
            ("train", "--cluster", "--output", "out", "--code", "."),
            "--code needs S3, which train --cluster does not use",
        ),
        (("train", "--cluster", "--framework", "jax", "--code", ".", "--", "python"), "--code applies only to pytorch"),
    ],
)
def test_a_wrong_use_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "train.py").touch()
    finished = kubetrain(*arguments, cwd=tmp_path)
    assert finished.exit_code == 2, finished.output
    assert message in finished.output
