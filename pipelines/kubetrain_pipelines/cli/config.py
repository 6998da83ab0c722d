"""`kubetrain config`: keep connections to Kubeflow Pipelines as contexts, one of which is current."""

import json
from dataclasses import asdict, replace
from pathlib import Path

import click

from kubetrain_pipelines.cli.options import AS_JSON


@click.group(invoke_without_command=True)
@click.pass_context
def config(context: click.Context) -> None:
    """Show or change your connections to Kubeflow Pipelines.

    Each is a context with a name. Commands use the current one unless an option, a variable or the repository names
    another endpoint.

    Example: kubetrain config set local --endpoint http://localhost:8888
    """
    if context.invoked_subcommand is None:
        context.invoke(list_)


@config.command("list")
@AS_JSON
def list_(as_json: bool) -> None:
    """List the contexts.

    Example: kubetrain config list --json
    """
    from kubetrain_pipelines.kubeflow.contexts import read_contexts

    contexts = read_contexts()
    if as_json:
        tables = {name: asdict(context) for name, context in contexts.by_name.items()}
        return click.echo(json.dumps({"current": contexts.current, "contexts": tables}, indent=2))
    for name, context in contexts.by_name.items():
        click.echo(f"{'*' if name == contexts.current else ' '} {name}")
        for key, value in asdict(context).items():
            if value:
                click.echo(f"    {key:13}  {value}")
    if not contexts.by_name:
        click.echo("no contexts: create one with `kubetrain config set NAME --endpoint URL`")
    return None


@config.command("set")
@click.argument("name")
@click.option("--endpoint", help="Kubeflow Pipelines URL.")
@click.option("--namespace", help="Your profile, if multi-user.")
@click.option("--token-command", help="Command that prints a token, run without a shell.")
@click.option("--ca-file", metavar="FILE", help="CA certificate of the server.")
def set_(name: str, **given: str | None) -> None:
    """Create or change context NAME.

    The first becomes the current one. An empty value removes what was set.

    Example: kubetrain config set team-a --namespace team-a
    """
    from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
    from kubetrain_pipelines.kubeflow.contexts import Context, config_file, read_contexts, write_contexts

    if not name:
        raise click.UsageError("NAME is empty")
    contexts = read_contexts()
    changes = {key: value for key, value in given.items() if value is not None}
    if ca_file := changes.get("ca_file"):
        changes["ca_file"] = str(Path(ca_file).absolute())
    context = replace(contexts.by_name.get(name, Context()), **changes)
    context = replace(context, endpoint=ConnectionOptions().connection_to(context).endpoint)  # refuses what is invalid
    contexts = replace(contexts, current=contexts.current or name, by_name={**contexts.by_name, name: context})
    write_contexts(contexts)
    click.echo(f"wrote context {name} to {config_file()}; the current one is {contexts.current}")


@config.command()
@click.argument("name")
def use(name: str) -> None:
    """Make context NAME the current one.

    Example: kubetrain config use team-a
    """
    from kubetrain_pipelines.kubeflow.contexts import read_contexts, write_contexts

    contexts = read_contexts()
    contexts.named(name)
    write_contexts(replace(contexts, current=name))
    click.echo(f"{name} is the current context")


@config.command()
@click.argument("name")
def delete(name: str) -> None:
    """Delete context NAME.

    Example: kubetrain config delete team-a
    """
    from kubetrain_pipelines.kubeflow.contexts import read_contexts, write_contexts

    contexts = read_contexts()
    contexts.named(name)
    left = {other: context for other, context in contexts.by_name.items() if other != name}
    write_contexts(replace(contexts, current=contexts.current if contexts.current in left else "", by_name=left))
    click.echo(f"deleted context {name}")
