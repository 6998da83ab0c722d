"""An evaluation of your own measures the latest published model too, if the gate compares with it."""

import json
from pathlib import Path

import pytest

from kubetrain_components.fetch_model.fetch import fetch_latest
from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.own_code.own_output import accept_model, forget_model
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import StopSignal
from support.process_groups import start_python
from support.published import published

EVALUATION = """
import json, os
from pathlib import Path
from kubetrain_trainer import session

session.log(1, loss=1)
words = (Path({model}) / "weights").read_text().split()
settings = json.loads(os.environ["KUBETRAIN_CONFIG"])["model_args"]
Path(os.environ["KUBETRAIN_OUTPUT"], "metrics.json").write_text(json.dumps({{"words": len(words), **settings}}))
os.chdir("/")
"""
GOOD = EVALUATION.format(model='os.environ["KUBETRAIN_MODEL"]')
WRONG = EVALUATION.format(model='os.environ["KUBETRAIN_OUTPUT"] + "/export"')
ENTRY = {"script": "train.py", "evaluation": {"script": "test.py"}}


def trained(folder: Path, weights: str, **model_args: int) -> Arguments:
    """Write what a script of your own leaves behind."""
    output = TrainingOutput(folder)
    config = TrainConfig(entry=ENTRY, model_args=model_args)
    output.begin("pytorch", config, "")
    forget_model(output, ProcessRole())
    (output.export / "weights").write_text(weights)
    accept_model(output, ProcessRole(), StopSignal(), folder)
    return Arguments(config=config, data_dir=folder, output=output, dataset_digest="")


def evaluate(output: TrainingOutput, latest: Path, script: str) -> tuple[int, str]:
    folder = output.path.parent
    (folder / "test.py").write_text(script)
    flags = ("--data-dir", "/data", "--output-dir", output.path, "--latest", latest)
    process = start_python("-m", "kubetrain_trainer.own_code.own_evaluation", *flags, cwd=folder)
    log, _ = process.communicate(timeout=60)
    return process.returncode, log


@pytest.fixture
def output(tmp_path: Path) -> TrainingOutput:
    """Return the output of a run, when a model with two words and other settings is the latest in latest/."""
    published(trained(tmp_path / "first", "1 2", depth=7), tmp_path / "models")
    fetch_latest(DirectoryStore(tmp_path / "models"), tmp_path / "latest")
    return trained(tmp_path / "run", "1 2 3", depth=8).output


def test_it_runs_once_for_each_model_with_the_settings_of_each(output: TrainingOutput, tmp_path: Path) -> None:
    code, log = evaluate(output, tmp_path / "latest", GOOD)
    assert code == 0, log
    evaluation = output.read_evaluation()
    assert evaluation["metrics"] == {"words": 3, "depth": 8}
    assert evaluation["latest"]["metrics"] == {"words": 2, "depth": 7}
    assert evaluation["latest"]["version"].endswith("-first")
    assert json.loads((output.path / "metrics.json").read_text()) == {"words": 3, "depth": 8}


@pytest.mark.parametrize(
    ("script", "says"),
    [
        (WRONG, "the evaluation, test.py, ended with exit code 1 for it"),
        (f"{GOOD}\nif len(words) < 3: raise SystemExit(9)", "ended with exit code 9 for it"),
        (GOOD.replace("json.dumps", "'' if len(words) < 3 else json.dumps"), "must be a JSON object of numbers"),
    ],
)
def test_a_script_that_cannot_measure_the_latest_model_proves_nothing_about_it(
    output: TrainingOutput, tmp_path: Path, script: str, says: str
) -> None:
    code, log = evaluate(output, tmp_path / "latest", script)
    assert code == 0, log
    evaluation = output.read_evaluation()
    assert evaluation["metrics"] == {"words": 3, "depth": 8}
    assert evaluation["latest"]["metrics"] == {}
    assert says in evaluation["latest"]["problem"]
