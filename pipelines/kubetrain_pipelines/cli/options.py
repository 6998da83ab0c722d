"""The options that several commands share. Imports only what parsing needs, to keep `kubetrain --help` fast."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
from click.shell_completion import CompletionItem

Command = Callable[..., None]
Option = Callable[[Command], Command]


class NamedPath(click.Path):
    """A path that is not empty: an empty one, such as that of a variable without a value, would be this folder.

    Nor a URI, which would be a folder called "s3:".
    """

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if "://" in str(value):
            self.fail(
                f"'{value}' is not a path on this machine: kubetrain only downloads here; upload with `aws s3 sync` or "
                "your store's own tool",
                param,
                ctx,
            )
        return super().convert(value, param, ctx) if value else self.fail("the name is empty", param, ctx)


FILE = NamedPath(path_type=Path)
FOLDER = NamedPath(path_type=Path)


def complete_source(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    from kubetrain_pipelines.definitions.pipeline_parameters import PIPELINES

    return [CompletionItem("", type="file"), *(CompletionItem(name) for name in PIPELINES if name.startswith(begun))]


def complete_names(_context: click.Context, _parameter: click.Parameter, begun: str) -> list[CompletionItem]:
    """Complete GROUP.NAME, and after --set also the choices of a setting."""
    from kubetrain_components.run.names import SETTINGS

    name, equals, _ = begun.partition("=")
    choices = SETTINGS[name].field.metadata["choices"] if equals and name in SETTINGS else ()
    offered = [f"{name}={choice}" for choice in choices] if equals else [*SETTINGS]
    return [CompletionItem(item) for item in offered if item.startswith(begun)]


SOURCE = click.argument("source", default="", metavar="[FILE | PIPELINE]", shell_complete=complete_source)
PAIRS = click.option(
    "--set",
    "pairs",
    shell_complete=complete_names,
    multiple=True,
    metavar="GROUP.NAME=VALUE",
    help="Set one setting (repeatable): --set train.epochs=30. `kubetrain settings` lists them.",
)
CODE = click.option(
    "--code", type=FOLDER, metavar="DIR", help="Folder of your own code: the files that git tracks, or all."
)
ASKED = (SOURCE, PAIRS, CODE)
"""The arguments that describe a run."""
AS_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def _use_context(context: click.Context, option: click.Parameter, name: str) -> None:
    from kubetrain_components.jobs.kubernetes.access.kubeconfig import CONTEXT_VARIABLE

    if name:
        os.environ[CONTEXT_VARIABLE] = name


CONTEXT = click.option(
    "--context",
    default="",
    expose_value=False,
    callback=_use_context,
    help="Context of your kubeconfig (default: $KUBETRAIN_CONTEXT, or its current one).",
)
LOGIN = (
    CONTEXT,
    click.option(
        "--endpoint",
        default="",
        help="Kubeflow Pipelines URL (default: $KUBETRAIN_KFP_ENDPOINT, or that of kubetrain config).",
    ),
    click.option("--token-file", type=FILE, help="File with a token (default: $KF_PIPELINES_TOKEN)."),
    click.option(
        "--cookie-file", type=FILE, help="File with a session cookie, NAME=VALUE (default: $KF_PIPELINES_COOKIE)."
    ),
    click.option("--ca-file", type=FILE, help="CA certificate of the server."),
)


def with_options(*options: Option) -> Option:
    """Add the options in the order in which the help shows them."""

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated
