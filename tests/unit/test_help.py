"""The help of every command: it fits 80 columns, begins with a verb, and ends with an example."""

import re
import shlex
from collections.abc import Iterator
from inspect import cleandoc

import click
import pytest

from kubetrain_pipelines.cli.main import kubetrain

VERBS = set(
    "Cancel Check Compile Copy Create Delete List Make Manage Name Pack Print Run Show Start Train Turn Verify "
    "Write".split()
)


def commands(command: click.Command, path: str) -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from commands(inner, f"{path} {name}")


ALL = dict(commands(kubetrain, "kubetrain"))


def paragraphs(path: str) -> list[str]:
    return [part.removeprefix("\b\n") for part in cleandoc(ALL[path].help or "").split("\n\n")]


def rendered(path: str) -> list[str]:
    context = click.Context(ALL[path], info_name=path, terminal_width=78)  # a terminal of 80 columns
    return ALL[path].get_help(context).splitlines()


@pytest.mark.parametrize("path", ALL)
def test_the_help_fits_80_columns(path: str) -> None:
    assert [line for line in rendered(path) if len(line) > 80] == []


@pytest.mark.parametrize("path", ALL)
def test_the_help_begins_with_a_verb(path: str) -> None:
    assert re.split(r"\W", paragraphs(path)[0])[0] in VERBS


@pytest.mark.parametrize("path", ALL)
def test_the_help_ends_with_an_example_that_can_be_copied(path: str) -> None:
    example = paragraphs(path)[-1]
    assert example.startswith(("Example: ", "Examples:\n"))
    assert all(f"  {line}" in rendered(path) for line in example.splitlines())


def examples() -> Iterator[str]:
    for path in ALL:
        yield from re.findall(r"kubetrain [^()\n]+", paragraphs(path)[-1])


@pytest.mark.parametrize("example", examples())
def test_an_example_is_accepted(example: str) -> None:
    words = shlex.split(example)[1:]
    command: click.Command = kubetrain
    while isinstance(command, click.Group):
        command = command.commands[words.pop(0)]
    command.make_context("command", words)


def test_the_list_of_commands_cuts_no_sentence_off() -> None:
    for path, command in ALL.items():
        if isinstance(command, click.Group):
            assert [line for line in rendered(path)[1:] if line.endswith("...")] == []
