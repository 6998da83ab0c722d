"""A script is refused only if it certainly writes no model; if it may write one elsewhere, a warning says so."""

import re

import pytest

from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.own_code.check_model import check_writes_model
from kubetrain_trainer.settings.config import TrainConfig

TRAINS = "import argparse, torch as t\nfrom torch.nn import Linear\nfrom .models import net\nimport models.net\n"
SCRIPT = {"script": "train.py"}
BESIDE = {"models/net.py": "import numpy"}


@pytest.mark.parametrize("text", [TRAINS, f"# Copyright of another\n{TRAINS}", "print('done')", "def broken("])
def test_a_script_that_cannot_write_is_refused(text: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape("'train.py' writes no model")):
        check_writes_model(TrainConfig(entry=SCRIPT), {"train.py": text, **BESIDE})


@pytest.mark.parametrize(
    "line",
    [
        "torch.save(model, path)",
        "from torch import save as keep",
        "import lightning",
        "from mylib.cli import main",
        "import torch; import mylib",
        "import torch, mylib as m",
        "subprocess.run(command)",
        "import importlib",
        "__import__('mylib').main()",
        "open(path, 'wb')",
        "model.fit(callbacks=[ModelCheckpoint(path)])",
    ],
)
def test_a_script_that_may_write_is_warned_of(line: str) -> None:
    (warning,) = check_writes_model(TrainConfig(entry=SCRIPT), {"train.py": f"{TRAINS}\n{line}", **BESIDE})
    assert "set train.outputs to the files, such as" in warned(warning)
    (warning,) = check_writes_model(TrainConfig(entry=SCRIPT), {"train.py": TRAINS, "models/net.py": line})
    assert warning


def warned(text: str) -> str:
    assert text.startswith("neither the code nor the arguments of 'train.py' name $KUBETRAIN_OUTPUT")
    return text


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        (SCRIPT, "session.finish(write)"),
        (SCRIPT, "from kubetrain_trainer.own_code.session import finish"),
        (SCRIPT, "os.environ['KUBETRAIN_OUTPUT']"),
        ({"script": "train.py", "args": ["--to=$KUBETRAIN_OUTPUT/export"]}, TRAINS),
        ({"command": ["python", "train.py", "--to=${KUBETRAIN_OUTPUT}/export"]}, TRAINS),
        ({"command": ["sh", "train.sh"]}, TRAINS),
        ({"command": ["python", "-m", "package.train"]}, TRAINS),
    ],
)
def test_a_script_that_knows_the_place_or_is_not_known_is_let_alone(entry: dict[str, object], text: str) -> None:
    assert check_writes_model(TrainConfig(entry=entry), {"train.py": text}) == []


def test_nothing_is_said_if_the_settings_say_where_the_model_is() -> None:
    for settings in ({"outputs": ["model.pt"]}, {"publishes": False}):
        config = TrainConfig.from_dict({"entry": SCRIPT, **settings})
        assert check_writes_model(config, {"train.py": TRAINS}) == []


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"outputs": ["model.pt"]}, "are for a script of your own"),
        ({"publishes": False}, "are for a script of your own"),
        ({"entry": SCRIPT, "outputs": ["../model.pt"]}, "not '../model.pt'"),
        ({"entry": SCRIPT, "outputs": ["/tmp/model.pt"]}, "not '/tmp/model.pt'"),
        ({"entry": SCRIPT, "outputs": ["."]}, "not '.'"),
        ({"entry": SCRIPT, "outputs": [7]}, "not 7"),
        ({"entry": SCRIPT, "outputs": ["a"], "publishes": False}, "train.publishes=false leaves no model"),
        ({"entry": {**SCRIPT, "evaluation": {"script": "test.py"}}, "publishes": False}, "leaves no model"),
    ],
)
def test_settings_of_outputs_that_cannot_be_meant_are_refused(settings: dict[str, object], problem: str) -> None:
    with pytest.raises(InvalidSetting, match=re.escape(problem)):
        TrainConfig.from_dict(settings)
