"""Startup of the trainers' programs: their flags and the mode of their output files."""

import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes import entry_point
from kubetrain_trainer.processes.entry_point import evaluation_arguments, run, training_arguments
from kubetrain_trainer.settings.config import TrainConfig


@pytest.fixture
def private_umask() -> Iterator[None]:
    before = os.umask(0o077)
    yield
    os.umask(before)


def test_other_users_can_read_the_output(tmp_path: Path, private_umask: None) -> None:
    run(lambda: TrainingOutput(tmp_path / "run").begin("pytorch", TrainConfig(), ""))
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "run", tmp_path / "run" / "config.json")]
    assert modes == [0o755, 0o644]


@pytest.mark.parametrize("kind", [KubetrainError, TypeError])
def test_an_error_in_a_graph_is_reported_without_the_graphs_frames(
    kind: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = []
    monkeypatch.setattr(entry_point, "_fail", lambda sentence, **_: failures.append(sentence))
    monkeypatch.setattr(entry_point, "end_process", lambda code: None)
    frames = '    File "/app/step.py", line 45, in compute  *\n        losses = run()\n    File "/x.py", line 2, in y\n'

    def fail() -> None:
        raise kind(f"in user code:\n\n{frames}\n    {kind.__name__}: the loss has shape ()\n")

    run(fail)
    [failure] = failures
    assert re.sub(r"line \d+", "line 1", failure) == (
        "the loss has shape ()"
        if kind is KubetrainError
        else "TypeError: the loss has shape () (test_entry_point.py, line 1)"
    )


def given(monkeypatch: pytest.MonkeyPatch, *flags: object) -> None:
    monkeypatch.setattr(sys, "argv", ["program", *map(str, flags)])


def test_an_evaluation_takes_the_settings_of_its_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ("--data-dir", "/data", "--output-dir", tmp_path, "--dataset-digest", "d")
    given(monkeypatch, *paths, "--epochs", "3")
    training = training_arguments("")
    training.output.begin("pytorch", training.config, training.dataset_digest)
    given(monkeypatch, *paths)
    assert evaluation_arguments("") == training
    assert training.config.epochs == 3


def test_an_evaluation_refuses_settings_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given(monkeypatch, "--data-dir", "/data", "--output-dir", tmp_path, "--epochs", "3")
    with pytest.raises(SystemExit):
        evaluation_arguments("")
    assert "unrecognized arguments: --epochs 3" in capsys.readouterr().err
