"""`kubetrain …`: parsing only, and one line to the function that does it.

Exit codes: 0 done, 1 failed or drifted, 2 bad usage, 130 Ctrl-C, 143 SIGTERM.
"""

import sys
from pathlib import Path

import click
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

# Only what parsing needs is imported above: `kubetrain --help` answers at once.


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, help="Show the traceback of an error.")
@click.version_option(package_name="kubetrain")
def kubetrain(debug: bool) -> None:
    """Distributed training from an S3 dataset to a checked, published model."""
    click.get_current_context().obj = debug


@kubetrain.command()
@click.option("--pipeline", default="train-pytorch", show_default=True, help="train-pytorch or train-tensorflow.")
@click.option(
    "--workspace",
    type=click.Path(path_type=Path),
    default="kubetrain-workspace",
    show_default=True,
    help="Folder for everything the run makes.",
)
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A parameter or a setting of the training.")
def run(pipeline: str, workspace: Path, pairs: tuple[str, ...]) -> None:
    """Run a whole pipeline on this machine: S3, several training processes, report."""
    from kubetrain_pipelines.run_command import run_and_show

    sys.exit(run_and_show(pipeline, workspace, pairs))


@kubetrain.command("compile")
@click.option("--check", is_flag=True, help="Write nothing; fail where a file is stale.")
@click.option(
    "--output", type=click.Path(path_type=Path), default="compiled", show_default=True, help="Folder of the YAML files."
)
def compile_(check: bool, output: Path) -> None:
    """Compile the pipelines for Kubeflow Pipelines."""
    from kubetrain_pipelines.compile import check_compiled, write_compiled

    if check:
        check_compiled(output)
        click.echo(f"{output} is up to date")
    else:
        changed = write_compiled(output)
        click.echo("\n".join(f"wrote {path}" for path in changed) or f"{output} is up to date")


def main() -> None:
    """Run a command; where it fails, say why in one sentence and end with the exit code of that kind of failure."""
    try:
        kubetrain(standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("stopped", err=True)
        sys.exit(130)
    except KubetrainError as error:
        if "--debug" in sys.argv:
            raise
        click.echo(f"error: {error}", err=True)
        sys.exit(2 if isinstance(error, InvalidSetting) else 1)
