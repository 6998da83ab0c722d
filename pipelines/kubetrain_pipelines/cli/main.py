"""The `kubetrain` command: each subcommand parses and calls one function."""

# Imports only what parsing needs, to keep `kubetrain --help` fast.

import sys
from pathlib import Path
from typing import Any

import click

from kubetrain_components import WORKSPACE
from kubetrain_pipelines.cli.config import config
from kubetrain_pipelines.cli.describe import COMMANDS as DESCRIBE
from kubetrain_pipelines.cli.kubeflow import COMMANDS as KUBEFLOW
from kubetrain_pipelines.cli.named_commands import COMMANDS as NAMED
from kubetrain_pipelines.cli.options import AS_JSON, ASKED, CONTEXT, FILE, FOLDER, LOGIN, with_options
from kubetrain_pipelines.cli.run_command import run_command


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.option(
    "--debug", is_flag=True, expose_value=False, help="Show the traceback of an error (allowed anywhere in a command)."
)
@click.version_option(package_name="kubetrain")
def kubetrain() -> None:
    """Train a model on several GPUs or machines: from an S3 dataset to a verified, published model.

    Example: kubetrain run
    """


@kubetrain.command()
@with_options(*ASKED)
@click.option("--workspace", type=FOLDER, default=WORKSPACE, show_default=True, help="Folder for the run's files.")
def run(workspace: Path, **asked: Any) -> None:
    """Run a whole pipeline on this machine.

    FILE describes the run, or is run.json of an earlier one. The run uses a local S3 server (unless you set data.uri),
    trains in several processes, and writes a report.

    Example: kubetrain run flowers.yaml --set train.epochs=1
    """
    from kubetrain_pipelines.cli.run import run_and_show
    from kubetrain_pipelines.requests.asked_run import AskedRun

    sys.exit(run_and_show(AskedRun(**asked), workspace))


@kubetrain.command("compile")
@click.option("--check", is_flag=True, help="Write nothing; fail if a file is stale.")
@click.option("--output", type=FOLDER, default="compiled", show_default=True, help="Folder for the YAML files.")
@click.option("--kubernetes-manifest", "as_manifest", is_flag=True, help="Write Kubernetes objects, for GitOps.")
@click.option("--namespace", default="", help="Namespace of the objects (default: the one you apply them to).")
def compile_(check: bool, output: Path, **output_format: Any) -> None:
    """Compile pipelines to YAML.

    These are the pipelines of [tool.kubetrain] in the nearest pyproject.toml upward, or else kubetrain's own.

    Example: kubetrain compile --check
    """
    from kubetrain_pipelines.definitions.compile import OutputFormat, check_compiled, write_compiled

    done = [] if check else write_compiled(output, OutputFormat(**output_format))
    if check:
        check_compiled(output, OutputFormat(**output_format))
    click.echo("\n".join(done) or f"{output} is up to date")


@kubetrain.command()
@click.argument("source")
@click.argument("directory", type=FOLDER)
@click.option("--s3-endpoint", default="", help="S3 server (default: AWS).")
@click.option("--anonymous", is_flag=True, help="Send no credentials: the bucket is public.")
@click.option("--requester-pays", is_flag=True, help="Pay for the requests yourself.")
@click.option(
    "--concurrency",
    type=click.IntRange(1, 256),
    help="Number of concurrent requests. Default: up to 64, as many as throughput gains from.",
)
@click.option("--include", multiple=True, metavar="PATTERN", help="Copy only keys like train/*.jpg (repeatable).")
@click.option("--exclude", multiple=True, metavar="PATTERN", help="Don't copy such keys (repeatable).")
@click.option("--dry-run", is_flag=True, help="Print what would be transferred, and transfer nothing.")
@AS_JSON
def sync(**options: Any) -> None:
    """Copy SOURCE into DIRECTORY as a dataset version.

    SOURCE is s3://BUCKET/PREFIX, a gs://, az:// or hf:// URI, a folder, or several by name:
    '{"train": "s3://bucket/a", "test": "s3://bucket/b"}'.

    Example: kubetrain sync s3://bucket/flowers ./data --anonymous
    """
    from kubetrain_pipelines.cli.sync import sync_and_show

    sync_and_show(**options)


@kubetrain.command()
@click.argument("directory", type=FOLDER)
@AS_JSON
def verify(directory: Path, as_json: bool) -> None:
    """Verify the hashes of datasets, checkpoints and run outputs.

    DIRECTORY is a dataset version, a checkpoint or a run's output, or a folder that contains some of these.

    Example: kubetrain verify ./kubetrain-workspace
    """
    from kubetrain_pipelines.cli.verify import verify_and_show

    sys.exit(verify_and_show(directory, as_json=as_json))


@kubetrain.command()
@click.argument("directory", type=FOLDER)
@click.argument("out", type=FOLDER)
@click.option("--shard-size", default="128MB", show_default=True, help="Max shard size: 64MB, 1GB, or bytes.")
@click.option(
    "--shorter-side",
    type=click.IntRange(min=1),
    help="Make larger images smaller, so that their shorter side has this many pixels.",
)
@AS_JSON
def pack(**options: Any) -> None:
    """Pack the images in DIRECTORY into tar shards.

    DIRECTORY holds <split>/<class>/<image>, or is a dataset version that does. OUT is a new folder for the shards.

    Example: kubetrain pack ./flowers ./shards --shorter-side 256
    """
    from kubetrain_pipelines.cli.pack import pack_and_show

    pack_and_show(**options)


@kubetrain.command()
@click.option(
    "--data", default="", help="Dataset version, or folder of <split>/<class>/<image>; on a cluster PVC or PVC:PATH."
)
@click.option("--output", default="", help="Folder, or PVC on a cluster, in which the run creates its own folder.")
@click.option("--run-id", default="", help="ID of the run to resume (default: start a new run).")
@with_options(*ASKED)
@click.option("--cluster", is_flag=True, help="Run on the cluster in KUBECONFIG; --data and --output are PVCs.")
@CONTEXT
@click.option("--namespace", default="", help="Namespace on the cluster (default: the context's).")
@click.option("--quiet", is_flag=True, help="Show the log of rank 0; of other ranks only warnings and errors.")
@click.option("--follow-all", is_flag=True, help="With --cluster: show all pods' logs live, also of more than 32 pods.")
@click.option("--dry-run", is_flag=True, help="With --cluster: print the job's manifests, and create nothing.")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def train(**options: Any) -> None:
    """Run one training job, here or on a cluster, and follow it.

    COMMAND is your program for mpi, xgboost, paddle or jax, in place of PIPELINE. Ctrl-C cancels the job.

    \b
    Examples:
    kubetrain train flowers.yaml --data ./flowers --output ./out
    kubetrain train mpi --cluster --set pods.workers=4 -- mpirun python train.py
    """
    from kubetrain_components.jobs.job_kinds import COMMAND_FRAMEWORKS
    from kubetrain_pipelines.cli.train import TrainOptions, train_and_show
    from kubetrain_pipelines.cli.train_command import run_command_and_show

    asked = TrainOptions(**options)
    read = asked.read()
    show = run_command_and_show if read.pipeline in COMMAND_FRAMEWORKS else train_and_show
    show(asked, read)


@kubetrain.command()
@with_options(*ASKED)
@click.option("--run-id", default="RUN-ID", show_default=True, help="Run ID, used in the names of the jobs.")
def render(run_id: str, **asked: Any) -> None:
    """Print the PVCs and jobs that a run creates on a cluster.

    Example: kubetrain render flowers.yaml
    """
    from kubetrain_pipelines.cli.render import render_and_show
    from kubetrain_pipelines.requests.asked_run import AskedRun

    render_and_show(AskedRun(**asked), run_id)


@kubetrain.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@click.option("--output", type=FILE, help="File to write (default: print it).")
def translate(**options: Any) -> None:
    """Turn the manifest of a job into a file that describes a run.

    FILE has a PyTorchJob, TFJob, TrainJob (and its runtime), ElasticJob, RayJob, MPIJob, XGBoostJob, PaddleJob or
    JAXJob; - reads the standard input. Fields without a counterpart, and what to run next, are on standard error.

    Example: kubetrain translate pytorchjob.yaml --output run.yaml
    """
    from kubetrain_pipelines.cli.translate import translate_and_show

    translate_and_show(**options)


@kubetrain.command()
@with_options(*ASKED)
@click.option(
    "--namespace",
    default="",
    help="Namespace of the runs (default: that of submit; without an endpoint, the context's).",
)
@click.option(
    "--service-account", default="", help="Service account of the runs (default: that of Kubeflow Pipelines)."
)
@click.option("--no-pods", is_flag=True, help="Only query the cluster: start no pods, create no PVCs.")
@AS_JSON
@with_options(*LOGIN)
def doctor(source: str, pairs: tuple[str, ...], code: Path | None, **options: Any) -> None:
    """Check a cluster before the first run and print fixes.

    Without an endpoint, doctor reaches Kubeflow Pipelines through its service in the cluster.

    Example: kubetrain doctor flowers.yaml
    """
    from kubetrain_pipelines.cli.doctor import DoctorOptions, examine_and_show
    from kubetrain_pipelines.requests.asked_run import AskedRun

    asked = AskedRun(source=source, pairs=pairs, code=code)
    sys.exit(examine_and_show(DoctorOptions(asked=asked, **options)))


@kubetrain.command()
@click.argument("target", default=WORKSPACE, metavar="[FOLDER | RUN]")
@click.option("--port", type=click.IntRange(1, 65535), default=6006, show_default=True, help="Port on this machine.")
@click.option("--pvc", default="", help="PVC with the output of RUN, which then needs no endpoint.")
@click.option("--namespace", default="", help="Namespace of the PVC; with an endpoint, your profile if multi-user.")
@with_options(*LOGIN)
def tensorboard(**options: Any) -> None:
    """Show the curves of runs in TensorBoard.

    FOLDER is a workspace or an output folder on this machine, for which TensorBoard starts. RUN is an ID, its beginning
    or a name in Kubeflow Pipelines, or an ID with --pvc: the Tensorboard object for Kubeflow is printed, and what to do
    with it.

    Example: kubetrain tensorboard ./kubetrain-workspace
    """
    from kubetrain_pipelines.cli.tensorboard import TensorboardOptions, show_curves

    show_curves(TensorboardOptions(**options))


@kubetrain.command()
@click.option("--namespace", default="", help="Namespace of the jobs (default: the context's).")
@click.option("--all-namespaces", is_flag=True, help="Show the jobs of all namespaces.")
@AS_JSON
@with_options(CONTEXT)
def top(**options: Any) -> None:
    """Show the GPUs, CPUs and memory of each job in a cluster.

    CPUs and memory are in use/requested; GPUs are those that pods with a node have requested.

    Example: kubetrain top --all-namespaces
    """
    from kubetrain_pipelines.cli.top import top_and_show

    top_and_show(**options)


for command in (*DESCRIBE, *KUBEFLOW, *NAMED, config):
    kubetrain.add_command(command)


def main() -> None:
    run_command(kubetrain)
