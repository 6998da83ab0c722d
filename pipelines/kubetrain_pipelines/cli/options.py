"""The options that several commands share. Imports only what parsing needs, to keep `kubetrain --help` fast."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

Command = Callable[..., None]
Option = Callable[[Command], Command]


class NamedPath(click.Path):
    """A path that is not empty: an empty one, such as that of a variable without a value, would be this folder."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(value, param, ctx) if value else self.fail("the name is empty", param, ctx)


FILE = NamedPath(path_type=Path)
FOLDER = NamedPath(path_type=Path)

PIPELINE = click.option(
    "--pipeline", default="train-pytorch", show_default=True, help="train-pytorch or train-tensorflow."
)
PARAMETERS = (
    click.option(
        "--set",
        "pairs",
        multiple=True,
        metavar="NAME=VALUE",
        help="Set a pipeline parameter or setting (repeatable); docs/settings.md lists them.",
    ),
    click.option("--params", type=FILE, help="JSON file of parameters and settings; --set overrides it."),
)
CODE = click.option(
    "--code", type=FOLDER, metavar="DIR", help="Folder of your own code: the files that git tracks, or all."
)
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
