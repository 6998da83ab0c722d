"""The README names only what is there, and its commands are ones that the command line takes."""

import re
import shlex
from pathlib import Path

import click
import pytest

from kubetrain_components.jobs.placement import Placement
from kubetrain_pipelines.cli.main import kubetrain
from kubetrain_pipelines.settings import PARAMETERS
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.model_names import KERAS, TORCHVISION

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
COMMANDS = [
    shlex.split(command.removeprefix(".venv/bin/"))
    for block in re.findall(r"```sh\n(.*?)```", README, re.S)
    for command in block.replace("\\\n", " ").splitlines()
]


def test_the_two_commands_come_first() -> None:
    assert COMMANDS[:2] == [["make", "run"], ["make", "run", "PIPELINE=train-tensorflow"]]


@pytest.mark.parametrize("command", [each for each in COMMANDS if each[0] == "kubetrain"], ids=" ".join)
def test_every_command_parses_and_sets_what_exists(command: list[str]) -> None:
    parser = kubetrain.commands[command[1]]
    context = parser.make_context(command[1], command[2:], resilient_parsing=False)
    names = [pair.partition("=")[0] for pair in context.params.get("pairs", ())]
    assert set(names) <= {*PARAMETERS, *TrainConfig.names(), *Placement.names()}


def test_every_command_is_listed_and_no_other() -> None:
    listed = set(re.findall(r"^\| `kubetrain ([a-z]+)", README, re.M))
    assert listed == set(kubetrain.commands)
    for name, command in kubetrain.commands.items():
        row = next(line for line in README.splitlines() if line.startswith(f"| `kubetrain {name}"))
        options = {option for parameter in command.params for option in parameter.opts}
        assert set(re.findall(r"--[a-z-]+", row)) <= options
    assert isinstance(kubetrain, click.Group)


def test_every_path_exists() -> None:
    links = re.findall(r"\]\(([^)#]+)\)", README)
    named = re.findall(r"`((?:pipelines|components|trainer|examples|compiled)/[\w./]*)`", README)
    assert links
    assert named
    assert [path for path in (*links, *named) if not (ROOT / path).exists()] == []


def test_the_counted_models_are_as_many() -> None:
    assert f"and {len(TORCHVISION) - 1} more |" in README
    assert f"`keras:resnet50` and {len(KERAS) - 1} more" in README
