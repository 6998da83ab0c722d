"""A task of your own that cannot be imported fails the run before the dataset is read."""

import json
from pathlib import Path

import pytest

from support.cli import kubetrain
from support.process_groups import start_python

PROGRAM = ("-m", "kubetrain_trainer.check_imports")
TASKS = {
    "fine": "def build(config, data_dir): ...",
    "nested": "import not_installed",
    "misspelled": "def biuld(config, data_dir): ...",
    "broken": "def build(:",
    "early": "open('/data/train/classes.txt')",
}


@pytest.mark.parametrize(
    ("module", "exit_code", "message"),
    [
        ("fine", 0, "'fine:build' can be imported"),
        ("absent", 1, "error: cannot import 'absent' of 'absent:build' (No module named 'absent')"),
        ("nested", 1, "error: cannot import 'nested' of 'nested:build' (No module named 'not_installed')"),
        ("misspelled", 1, "error: module 'misspelled' has no function 'build': did you mean 'biuld'?"),
        ("broken", 1, "error: cannot import 'broken:build': invalid syntax (broken.py, line 1)"),
        ("early", 0, "warning: importing 'early:build' without GPU and dataset raised FileNotFoundError"),
    ],
)
def test_only_what_no_pod_could_import_is_an_error(tmp_path: Path, module: str, exit_code: int, message: str) -> None:
    for name, text in TASKS.items():
        (tmp_path / f"{name}.py").write_text(text)
    program = start_python(*PROGRAM, f"{module}:build", cwd=tmp_path)
    output, _ = program.communicate(timeout=60)
    assert (program.returncode, message in output) == (exit_code, True), output


def test_a_missing_module_fails_the_run_before_the_dataset_is_read(tmp_path: Path) -> None:
    finished = kubetrain(
        *("run", "--workspace", tmp_path / "workspace", "--set", f"dataset_uri={tmp_path / 'no-dataset'}"),
        *("--set", "model=absent:build"),
        cwd=tmp_path,
    )
    assert finished.exit_code == 1
    assert "No module named 'absent'" in finished.output.splitlines()[-1]
    assert not list((tmp_path / "workspace").glob("staging/*"))
    events = [json.loads(line) for line in (tmp_path / "workspace" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["stage"] == "sync_dataset", "the first step refuses the run"
