"""`kubetrain status`, `logs`, `cancel` and `diagnose`, which take a run, a job or a folder. Each calls one function."""

import sys
from typing import Any

import click

from kubetrain_pipelines.cli.options import AS_JSON, FILE, LOGIN, with_options

ACCESS = (
    click.option("--namespace", default="", help="Namespace of the job; with an endpoint, your profile if multi-user."),
    *LOGIN,
)


@click.command()
@click.argument("run", default="", metavar="[RUN | JOB | FOLDER]")
@click.option("--watch", is_flag=True, help="Show it every two seconds until it ends; if piped, print what changes.")
@AS_JSON
@with_options(*ACCESS)
def status(**options: Any) -> None:
    """Show what a run or a job does now.

    It shows stages, pods and progress, what it waits for, and why it failed.

    RUN is an ID, its beginning or a name in Kubeflow Pipelines, JOB a job in a cluster, FOLDER a workspace or output.
    Default: recent runs in Kubeflow Pipelines, or without an endpoint ./kubetrain-workspace.

    Example: kubetrain status nightly --watch
    """
    from kubetrain_pipelines.cli.status import StatusOptions, status_and_show

    status_and_show(StatusOptions(**options))


@click.command()
@click.argument("run", metavar="RUN | JOB | FOLDER")
@click.option("--stage", default="", help="Print the logs of this stage of a run only, such as launch-training.")
@click.option("--follow", is_flag=True, help="Keep printing until the run ends.")
@click.option("--all", "everything", is_flag=True, help="Print also what Kubeflow Pipelines wrote around the steps.")
@with_options(*ACCESS)
def logs(run: str, stage: str, follow: bool, everything: bool, **access: Any) -> None:
    """Print the logs of a run or a job.

    RUN is an ID, its beginning or a name in Kubeflow Pipelines, JOB a job in a cluster, FOLDER a workspace or output.

    Example: kubetrain logs nightly --stage launch-training
    """
    from kubetrain_components.interrupts import interrupted_by_sigterm
    from kubetrain_pipelines.cli.logs import show_logs
    from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions

    with interrupted_by_sigterm():
        show_logs(run, ConnectionOptions(**access), stage, follow=follow, everything=everything)


@click.command()
@click.argument("run", metavar="RUN | JOB | FOLDER")
@with_options(*ACCESS)
def cancel(run: str, **access: Any) -> None:
    """Cancel a run or a job and verify that it has stopped.

    RUN is an ID, its beginning or a name in Kubeflow Pipelines, JOB a job in a cluster, FOLDER a workspace or output.

    Example: kubetrain cancel nightly
    """
    from kubetrain_components.interrupts import interrupted_by_sigterm
    from kubetrain_pipelines.cli.cancel import cancel_and_show
    from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions

    with interrupted_by_sigterm():
        cancel_and_show(run, ConnectionOptions(**access))


@click.command()
@click.argument("targets", nargs=-1, metavar="[RUN | JOB | FOLDER | LOGFILE...]")
@click.option("--bundle", type=FILE, help="Archive (.tar.gz) to write what was read into, without secrets.")
@AS_JSON
@with_options(*ACCESS)
def diagnose(**options: Any) -> None:
    """Name the causes of a failure, with evidence and remedies.

    RUN is an ID, its beginning or a name in Kubeflow Pipelines, JOB a job in a cluster, FOLDER a workspace or output,
    LOGFILE a log of any training; - reads the standard input. Default: ./kubetrain-workspace.

    Example: kubetrain diagnose nightly
    """
    from kubetrain_pipelines.cli.diagnose import DiagnoseOptions, diagnose_and_show

    sys.exit(diagnose_and_show(DiagnoseOptions(**options)))


COMMANDS = (status, logs, cancel, diagnose)
