"""`kubetrain.run`: a run on this machine from Python."""

import json
import os
import threading
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import pytest

import kubetrain
from support.cli import processes_of

SCRIPT = """
import json, os
from pathlib import Path

output = Path(os.environ["KUBETRAIN_OUTPUT"])
(output / "export" / "weights").write_text("1")
(output / "metrics.json").write_text(json.dumps({"<b>accuracy</b>": 0.75}))
"""


@pytest.fixture
def code(tmp_path: Path) -> Path:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "train.py").write_text(SCRIPT)
    return tmp_path / "code"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "numbers.txt").write_text("1 2 3")
    return tmp_path / "data"


def test_a_run_that_fails_raises_its_sentence_and_leaves_nothing_behind(
    tmp_path: Path, data: Path, code: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """In a thread, as in some notebooks: only the main thread may handle signals."""
    workspace, before, raised = tmp_path / "work", dict(os.environ), []

    def run() -> None:
        with pytest.raises(kubetrain.RunFailed) as error:
            kubetrain.run(workspace=workspace, code=code, data={"uri": data}, pods={"workers": 1})
        raised.append(str(error.value))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert "has no folder 'train' for the training" in raised[0]
    output = capfd.readouterr().out
    assert "sync_dataset: failed after" in output
    assert str(workspace / "report.html") in output
    assert os.environ == before, "the code is for this run only"
    assert processes_of(workspace) == []


def test_what_the_command_refuses_is_refused(tmp_path: Path) -> None:
    with pytest.raises(kubetrain.InvalidSetting, match=r"no setting 'train\.epoch': did you mean 'train\.epochs'"):
        kubetrain.run(workspace=tmp_path, train={"epoch": 1})
    with pytest.raises(kubetrain.InvalidSetting, match="unknown pipeline 'train-torch'"):
        kubetrain.run("train-torch", workspace=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_run_returns_its_metrics_its_model_and_its_report(tmp_path: Path, data: Path, code: Path) -> None:
    settings: dict[str, Any] = {"data": {"uri": data}, "pods": {"workers": 1}, "train": {"entry": "train.py"}}
    run = kubetrain.run(workspace=tmp_path / "work", code=code, **settings)
    assert run.metrics == {"<b>accuracy</b>": 0.75}
    assert (Path(run.model_uri.removeprefix("file://")) / "weights").read_text() == "1"
    assert run.report.is_file()
    assert {each.state for each in run.stages} == {"succeeded"}
    shown = run._repr_html_()
    for part in (run.id, "promote_model", "&lt;b&gt;accuracy&lt;/b&gt;", escape(run.report.read_text())):
        assert part in shown
    assert "<b>accuracy" not in shown
    run.report.unlink()
    assert "does not exist anymore" in run._repr_html_()


def train(share: float) -> dict[str, float]:
    output = Path(os.environ["KUBETRAIN_OUTPUT"])
    (output / "export" / "weights").write_text(json.dumps(share))
    return {"accuracy": 1 / share}


@pytest.mark.slow
def test_a_function_trains_in_place_of_a_script(tmp_path: Path, data: Path, code: Path) -> None:
    settings: dict[str, Any] = {"data": {"uri": data}, "pods": {"workers": 1}, "workspace": tmp_path / "work"}
    run = kubetrain.run(**settings, code=code, train={"entry": partial(train, 4.0)})
    assert run.metrics == {"accuracy": 0.25}
    assert (Path(run.model_uri.removeprefix("file://")) / "weights").read_text() == "4.0"
    with pytest.raises(kubetrain.RunFailed, match=r"ZeroDivisionError: .* \(kubetrain_function\.py, line \d+\)"):
        kubetrain.run(**settings, train={"entry": partial(train, 0.0)})


def test_the_model_that_a_run_names_can_be_read(tmp_path: Path) -> None:
    """Also the one in the S3 server of the run, which has ended."""
    from kubetrain.local_runs import LocalRun
    from kubetrain_pipelines.local_run.record import RunRecord
    from kubetrain_trainer.settings.config import TrainConfig

    (tmp_path / "s3" / "models" / "v1").mkdir(parents=True)
    record = RunRecord(
        pipeline="train-pytorch", workspace=tmp_path, asked={}, settings={}, config=TrainConfig(), started=0.0
    )
    for event in ({"event": "started"}, {"event": "finished", "result": {"uri": "s3://models/v1/"}}):
        record.add({"stage": "promote_model", "time": 1.0, **event})
    assert LocalRun(record).model_uri == (tmp_path / "s3" / "models" / "v1").as_uri()
    assert json.dumps(LocalRun(record).metrics) == "{}"
