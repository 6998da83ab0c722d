"""`kubetrain settings`, `new` and `completion`, which help to describe a run: each parses and calls one function."""

import os
import re
import shlex
from pathlib import Path

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    get_completion_class,
    split_arg_string,
)

from kubetrain_pipelines.cli.options import AS_JSON, FILE, complete_names


class SplitWords(BashComplete):
    """Complete what follows =, at which bash splits words: it would take a choice for a word of its own."""

    def get_completion_args(self) -> tuple[list[str], str]:
        words = os.environ["COMP_WORDS"].split("\n")[: int(os.environ["COMP_CWORD"]) + 1]
        begun = split_arg_string(re.sub(r"\n=(\n|$)", "=", "\n".join(filter(None, words))))
        return (begun[1:-1], begun[-1]) if words[-1] else (begun[1:], "")

    def format_completion(self, item: CompletionItem) -> str:
        return f"{item.type},{item.value.rpartition('=')[2]}"


add_completion_class(SplitWords, "bash")


@click.command()
@click.argument("name", default="", metavar="[GROUP | GROUP.NAME]", shell_complete=complete_names)
@AS_JSON
def settings(name: str, as_json: bool) -> None:
    """List the settings of a run, or explain one.

    Example: kubetrain settings train.precision
    """
    from kubetrain_pipelines.cli.settings import show_settings

    show_settings(name, as_json=as_json)


@click.command()
@click.argument("file", default="run.yaml", type=FILE)
@click.option("--pipeline", default="train-pytorch", show_default=True, help="Or train-tensorflow.")
def new(file: Path, pipeline: str) -> None:
    """Write a file that describes a run, with comments.

    Example: kubetrain new flowers.yaml
    """
    from kubetrain_pipelines.cli.settings import write_new

    write_new(file, pipeline)
    click.echo(f"wrote {file}: fill in data.uri and model.uri, then `kubetrain run {shlex.quote(str(file))}`")


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the completion of commands and settings for a shell.

    Example: source <(kubetrain completion bash)
    """
    complete = get_completion_class(shell)
    assert complete
    click.echo(complete(context.find_root().command, {}, "kubetrain", "_KUBETRAIN_COMPLETE").source())


COMMANDS = (settings, new, completion)
