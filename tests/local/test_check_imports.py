"""A task of your own that cannot be imported fails the run before the dataset is read."""

import json
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job_logs import print_line
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.run.check_imports import check_imports
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.sites.cluster import ONLY_TRAINING_PODS
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.config import TrainConfig
from support.cli import kubetrain
from support.process_groups import start_python

PROGRAM = ("-m", "kubetrain_trainer.own_code.check_imports", "--framework", "pytorch")
TASKS = {
    "fine": "def build(config, data_dir): ...",
    "nested": "import not_installed",
    "misspelled": "def biuld(config, data_dir): ...",
    "broken": "def build(:",
    "long": "raise RuntimeError('x' * 10_000)",
    "early": "open('/data/train/classes.txt')",
}


@pytest.mark.parametrize(
    ("module", "message"),
    [
        ("fine", "'fine:build' can be imported"),
        ("absent", "error: cannot import 'absent' of 'absent:build' (No module named 'absent')"),
        ("nested", "error: cannot import 'nested' of 'nested:build' (No module named 'not_installed')"),
        ("misspelled", "error: module 'misspelled' has no function 'build': did you mean 'biuld'?"),
        ("broken", "error: cannot import 'broken:build': invalid syntax (broken.py, line 1)"),
        ("long", "warning: importing 'long:build' without GPU and dataset raised RuntimeError: xxxx"),
        ("early", "warning: importing 'early:build' without GPU and dataset raised FileNotFoundError"),
    ],
)
def test_only_what_no_pod_could_import_is_an_error(tmp_path: Path, module: str, message: str) -> None:
    for name, text in TASKS.items():
        (tmp_path / f"{name}.py").write_text(text)
    log = tmp_path / "termination-log"
    log.touch()
    program = start_python(*PROGRAM, "--model", f"{module}:build", cwd=tmp_path, KUBETRAIN_TERMINATION_LOG=str(log))
    output, _ = program.communicate(timeout=60)
    assert program.returncode == 0, output
    assert json.loads(log.read_text())["seen"]["task"].startswith(message)
    assert message in output


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"script": "fine.py"}, "'fine.py' can start"),
        ({"command": ["python", "-u", "fine.py"]}, "'python' can start"),
        ({"script": "absent.py"}, "error: train.entry: there is no script 'absent.py' in "),
        ({"command": ["absent"]}, "error: train.entry: there is no program 'absent' where the training runs"),
        ({"command": ["python", "absent.py"]}, "error: train.entry: there is no script 'absent.py' in "),
        ({"command": ["python", "-m", "json.tool", "absent.py"]}, "'python' can start"),
        (
            {"script": "nested.py"},
            "error: train.entry: 'nested.py' imports modules that are not installed where it would run: not_installed",
        ),
        ({"script": "broken.py"}, "error: train.entry: 'broken.py' is not Python: invalid syntax (broken.py, line 1)"),
        ({"script": "optional.py"}, "'optional.py' can start"),
        ({"script": "finds_more.py"}, "'finds_more.py' can start"),
        (
            {"script": "fine.py", "evaluation": {"script": "absent.py"}},
            "error: train.entry: there is no script",
        ),
    ],
)
def test_a_script_is_not_run(tmp_path: Path, entry: dict[str, Any], message: str) -> None:
    scripts = {
        "optional": "try:\n    import not_installed\nexcept ImportError: ...",
        "finds_more": "import sys\nsys.path.append('/more')\nimport not_installed",
    }
    for name, text in (TASKS | scripts | {"fine": "import fine_too, torch.nn, json\nraise SystemExit(1)"}).items():
        (tmp_path / f"{name}.py").write_text(text)
    (tmp_path / "fine_too.py").write_text("where = '$KUBETRAIN_OUTPUT/export'")
    program = start_python(*PROGRAM, "--entry", json.dumps(entry), cwd=tmp_path)
    output, _ = program.communicate(timeout=60)
    assert program.returncode == 0, output
    assert output.startswith(message)


def parameters(folder: Path, model: str) -> RunParameters:
    return RunParameters(
        dataset_uri="s3://bucket/dataset",
        pipeline="train-pytorch",
        run_id="r1",
        framework="pytorch",
        train_config=TrainConfig(model=model),
        model_uri=folder.as_uri(),
    )


def test_a_retry_of_the_step_finds_the_module_that_was_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    with LocalBackend(tmp_path / "jobs") as backend:
        with pytest.raises(InvalidSetting, match=r"No module named 'added'.*; if only the training pods have"):
            check_imports(parameters(tmp_path, "added:build"), backend, print_line, ONLY_TRAINING_PODS)
        (tmp_path / "added.py").write_text(TASKS["fine"])
        check_imports(parameters(tmp_path, "added:build"), backend, print_line)
    assert "'added:build' can be imported" in capsys.readouterr().out


def test_a_job_that_cannot_tell_is_only_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "killed.py").write_text("import os; os.kill(os.getpid(), 9)")
    with LocalBackend(tmp_path / "jobs") as backend:
        check_imports(parameters(tmp_path, "killed:build"), backend, print_line)
    assert "the training will find out" in capsys.readouterr().out


def test_a_missing_module_fails_the_run_before_the_dataset_is_read(tmp_path: Path) -> None:
    finished = kubetrain(
        *("run", "--workspace", tmp_path / "workspace", "--set", f"data.uri={tmp_path / 'no-dataset'}"),
        *("--set", "model.name=absent:build"),
        cwd=tmp_path,
    )
    assert finished.exit_code == 1
    said = finished.output.splitlines()[-1]
    assert "No module named 'absent'" in said
    assert "check_imports" not in said, "a local run refuses this setting"
    assert not list((tmp_path / "workspace").glob("staging/*"))
    events = [json.loads(line) for line in (tmp_path / "workspace" / "events.jsonl").read_text().splitlines()]
    assert events[-1]["stage"] == "sync_dataset", "the first step refuses the run"
