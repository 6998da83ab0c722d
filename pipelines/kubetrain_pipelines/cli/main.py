"""`kubetrain …`: parsing only, and one line to the function that does it.

Exit codes: 0 done, 1 failed or drifted, 2 bad usage, 130 Ctrl-C, 143 SIGTERM.
"""

import sys
import traceback
from pathlib import Path
from typing import Any

import click

from kubetrain_pipelines.cli.kubeflow import COMMANDS, LOGIN, PARAMETERS, with_options
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

# Only what parsing needs is imported above: `kubetrain --help` answers at once.

FOLDER = click.Path(path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option("--debug", is_flag=True, expose_value=False, help="Show the traceback of an error; may stand anywhere.")
@click.version_option(package_name="kubetrain")
def kubetrain() -> None:
    """Distributed training from an S3 dataset to a checked, published model."""


@kubetrain.command()
@click.option("--pipeline", default="train-pytorch", show_default=True, help="train-pytorch or train-tensorflow.")
@click.option(
    "--workspace", type=FOLDER, default="kubetrain-workspace", show_default=True, help="Folder for all the run makes."
)
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A parameter of the run or of its training.")
def run(pipeline: str, workspace: Path, pairs: tuple[str, ...]) -> None:
    """Run a whole pipeline on this machine: S3, several training processes, report."""
    from kubetrain_pipelines.cli.run import run_and_show

    sys.exit(run_and_show(pipeline, workspace, pairs))


@kubetrain.command("compile")
@click.option("--check", is_flag=True, help="Write nothing; fail where a file is stale.")
@click.option("--output", type=FOLDER, default="compiled", show_default=True, help="Folder of the YAML files.")
@click.option("--kubernetes-manifest", "as_manifest", is_flag=True, help="As objects to apply: for GitOps.")
@click.option("--namespace", default="", help="Of those objects; default: that which they are applied to.")
def compile_(check: bool, output: Path, **form: Any) -> None:
    """Compile the pipelines of this repository ([tool.kubetrain] in its pyproject.toml), or else kubetrain's own."""
    from kubetrain_pipelines.compile import Form, check_compiled, write_compiled

    changed = [] if check else write_compiled(output, Form(**form))
    if check:
        check_compiled(output, Form(**form))
    click.echo("\n".join(f"wrote {path}" for path in changed) or f"{output} is up to date")


@kubetrain.command()
@click.argument("source")
@click.argument("directory", type=FOLDER)
@click.option("--endpoint-url", default="", help="S3 server; default AWS.")
@click.option("--anonymous", "access", flag_value="anonymous", help="Send no credentials: a public bucket.")
@click.option("--requester-pays", "access", flag_value="requester-pays", help="Let our account pay for the requests.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    default=64,
    show_default=True,
    help="Requests at a time, at most: as many are used as the latency asks for.",
)
@click.option("--dry-run", is_flag=True, help="Say what would be done.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def sync(**options: Any) -> None:
    """Bring SOURCE (s3://BUCKET/PREFIX or a folder) into DIRECTORY as a dataset version."""
    from kubetrain_pipelines.cli.sync import sync_and_show

    sync_and_show(**options)


@kubetrain.command()
@click.argument("directory", type=FOLDER)
def verify(directory: Path) -> None:
    """Re-hash a dataset version, a checkpoint, a run's output, or all that a folder has of them."""
    from kubetrain_pipelines.cli.verify import verify_folder

    verified = verify_folder(directory)
    for each in verified:
        click.echo(
            "\n".join(f"corrupt  {each.path}: {problem}" for problem in each.problems) or f"intact   {each.path}"
        )
    if any(each.problems for each in verified):
        sys.exit(1)


@kubetrain.command()
@click.argument("directory", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option("--shard-size", default="128MB", show_default=True, help="Of a shard at most: 64MB, 1GB, or bytes.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
def pack(**options: Any) -> None:
    """Pack DIRECTORY (<split>/<class>/<image>, or a dataset version of that) into tar shards in the new folder OUT."""
    from kubetrain_pipelines.cli.pack import pack_and_show

    pack_and_show(**options)


@kubetrain.command()
@click.option("--framework", default="pytorch", show_default=True, help="pytorch or tensorflow.")
@click.option(
    "--data",
    default="",
    help="A dataset version, or a folder of <split>/<class>/<image>; on a cluster CLAIM:PATH of such a folder.",
)
@click.option("--output", required=True, help="Folder, or claim, that gets a folder for this run.")
@click.option("--run-id", default="", help="Resume the run with this id; default: a new run.")
@click.option("--workers", type=int, default=2, show_default=True, help="Pods, the Master or Chief among them.")
@click.option("--min-workers", type=int, default=0, help="Pods that go on when others are lost (PyTorch); 0: none.")
@click.option("--processes-per-worker", type=int, default=1, show_default=True, help="Processes in each pod.")
@click.option("--max-restarts", type=int, default=3, show_default=True, help="Times the job may be restarted.")
@click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A setting of the training or its pods.")
@click.option("--cluster", is_flag=True, help="On the cluster that KUBECONFIG names; --data and --output are claims.")
@click.option("--namespace", default="", help="On a cluster; default: the context's own.")
@click.option("--quiet", is_flag=True, help="Show what rank 0 says, and of the others only what sounds alarming.")
@click.option("--dry-run", is_flag=True, help="With --cluster: print the job's manifest, and create nothing.")
def train(**options: Any) -> None:
    """Run one distributed training job, here or on a cluster, and follow it; Ctrl-C cancels it."""
    from kubetrain_pipelines.cli.train import TrainOptions, train_and_show

    train_and_show(TrainOptions(**options))


@kubetrain.command()
@click.option("--pipeline", default="train-pytorch", show_default=True, help="train-pytorch or train-tensorflow.")
@click.option("--run-id", default="RUN-ID", show_default=True, help="What names of jobs are made from.")
@with_options(*PARAMETERS)
def render(**options: Any) -> None:
    """Print the claims and jobs that a run of the pipeline makes on a cluster."""
    from kubetrain_pipelines.cli.render import render_and_show

    render_and_show(**options)


@kubetrain.command()
@click.option("--pipeline", default="train-pytorch", show_default=True, help="train-pytorch or train-tensorflow.")
@click.option("--namespace", default="", help="Where runs are; default: the context's own.")
@click.option("--account", default="", help="Service account of the runs; default: that of Kubeflow Pipelines.")
@with_options(*PARAMETERS)
@click.option("--no-pods", is_flag=True, help="Only ask: start no pods, make no claims.")
@click.option("--json", "as_json", is_flag=True, help="Report as JSON.")
@with_options(*LOGIN)
def doctor(**options: Any) -> None:
    """Say what a cluster lacks before the first run, and what supplies it.

    Where no endpoint is said, Kubeflow Pipelines is asked through its service, if the cluster has it.
    """
    from kubetrain_pipelines.cli.doctor import DoctorOptions, examine_and_show

    sys.exit(examine_and_show(DoctorOptions(**options)))


for command in COMMANDS:
    kubetrain.add_command(command)


def main() -> None:
    """Run a command; where it fails, say why in one sentence and end with the exit code of that kind of failure."""
    debug = "--debug" in sys.argv
    try:
        kubetrain([argument for argument in sys.argv[1:] if argument != "--debug"], standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (KeyboardInterrupt, click.Abort) as interruption:
        from kubetrain_components.interrupts import exit_code_of

        click.echo("stopped", err=True)
        sys.exit(exit_code_of(interruption.__cause__))  # Click makes an Abort of every KeyboardInterrupt
    except Exception as error:  # noqa: BLE001 - whatever it is, it ends the command with a sentence
        if debug:
            traceback.print_exc()
        foreseen = isinstance(error, KubetrainError)
        for line in getattr(error, "log_tail", ()):  # of the pod that failed
            click.echo(line, err=True)
        sentence = f"error: {error}" if foreseen else f"unexpected {type(error).__name__}: {error} (see --debug)"
        click.echo(sentence, err=True)
        sys.exit(2 if isinstance(error, InvalidSetting) else 1)
