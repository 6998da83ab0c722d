"""`kubetrain submit` and `schedule`: each parses and calls one function."""

from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kubetrain_pipelines.cli.options import AS_JSON, ASKED, FILE, LOGIN, Command, with_options

if TYPE_CHECKING:
    from kubetrain_pipelines.kubeflow.kfp_api import KfpApi

NAMESPACE = click.option(
    "--namespace", default="", help="Your profile, if multi-user (default: that of kubetrain config)."
)
RUN = (
    *ASKED,
    click.option("--experiment", default="", help="Experiment, created if missing (default: Default)."),
    click.option("--service-account", default="", help="Service account for the run's steps (default: the server's)."),
)
STARTED = (click.option("--detach", is_flag=True, help="Start the run without following it."), AS_JSON)
CONNECTION_NAMES = ("endpoint", "namespace", "token_file", "cookie_file", "ca_file")


def with_connection(command: Command) -> Command:
    """Add the options of the connection, pass the API that they name as the first argument, and stop at SIGTERM."""

    @wraps(command)
    def connected(**options: Any) -> None:
        from kubetrain_components.interrupts import interrupted_by_sigterm
        from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
        from kubetrain_pipelines.kubeflow.kfp_api import KfpApi

        connection = ConnectionOptions(**{name: options.pop(name) for name in CONNECTION_NAMES})
        with interrupted_by_sigterm():
            command(KfpApi(connection.required_connection()), **options)

    return with_options(NAMESPACE, *LOGIN)(connected)


@click.command()
@with_options(*RUN)
@click.option("--name", default="", help="Name of the run (default: pipeline name and time).")
@with_options(*STARTED)
@with_connection
def submit(api: "KfpApi", detach: bool, as_json: bool, **options: Any) -> None:
    """Start a run in Kubeflow Pipelines and follow it to the end.

    FILE describes the run. PIPELINE is a compiled file, or the name of one in ./compiled.

    Example: kubetrain submit flowers.yaml --set train.epochs=1
    """
    from kubetrain_pipelines.cli.runs import submit_and_show
    from kubetrain_pipelines.kubeflow.submit import RunOptions

    submit_and_show(api, RunOptions(**options), detach=detach, as_json=as_json)


@click.group()
def schedule() -> None:
    """Manage recurring runs in Kubeflow Pipelines.

    Example: kubetrain schedule list
    """


@schedule.command()
@with_options(*RUN)
@click.option(
    "--cron",
    default="",
    help="Six fields, seconds first, in the server's time zone: '0 0 2 * * *' is 02:00 every night.",
)
@click.option("--every", default="", help="Interval, instead of --cron: 30m, 6h, 1d.")
@click.option(
    "--name", default="", help="Name of the schedule; replaces your own with this name (default: pipeline name)."
)
@click.option("--max-concurrency", type=click.IntRange(1, 10), default=1, show_default=True, help="Max runs at a time.")
@with_connection
def create(api: "KfpApi", cron: str, every: str, max_concurrency: int, **options: Any) -> None:
    """Create a schedule, or replace your own of this name.

    By default, runs don't overlap.

    Example: kubetrain schedule create flowers.yaml --cron '0 0 2 * * *'
    """
    from kubetrain_pipelines.kubeflow.schedule import Timing, create_schedule
    from kubetrain_pipelines.kubeflow.submit import RunOptions
    from kubetrain_pipelines.requests.say import print_line

    timing = Timing(cron=cron, every=every, max_concurrency=max_concurrency)
    create_schedule(api, RunOptions(**options), timing, print_line)


@schedule.command("list")
@AS_JSON
@with_connection
def list_(api: "KfpApi", as_json: bool) -> None:
    """List the schedules.

    Example: kubetrain schedule list
    """
    from kubetrain_pipelines.cli.runs import list_schedules_and_show

    list_schedules_and_show(api, as_json=as_json)


@schedule.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=FILE)
@click.option("--dry-run", is_flag=True, help="Print what would be done, and change nothing.")
@with_connection
def apply(api: "KfpApi", files: tuple[Path, ...], dry_run: bool) -> None:
    """Create, replace and delete schedules as files describe them.

    Each FILE describes a run, and has a group schedule with cron or every, and optionally name, max_concurrency,
    experiment and service_account. Schedules in the namespace that an earlier apply made and no FILE describes are
    deleted.

    Example: kubetrain schedule apply schedules/*.yaml
    """
    from kubetrain_pipelines.kubeflow.apply_schedules import apply_schedules
    from kubetrain_pipelines.requests.say import print_line

    apply_schedules(api, files, print_line, dry_run=dry_run)


@schedule.command()
@click.argument("name")
@with_options(*STARTED)
@with_connection
def run(api: "KfpApi", name: str, detach: bool, as_json: bool) -> None:
    """Start a run of a schedule now, and follow it to the end. NAME may also be an ID.

    Example: kubetrain schedule run nightly
    """
    from kubetrain_pipelines.cli.runs import start_and_show
    from kubetrain_pipelines.kubeflow.schedule import run_schedule
    from kubetrain_pipelines.requests.say import print_line

    start_and_show(api, lambda: run_schedule(api, name, print_line), detach=detach, as_json=as_json)


@schedule.command()
@click.argument("name")
@with_connection
def delete(api: "KfpApi", name: str) -> None:
    """Delete a schedule; its runs stay. NAME may also be an ID.

    Example: kubetrain schedule delete nightly
    """
    from kubetrain_pipelines.kubeflow.schedule import delete_schedules
    from kubetrain_pipelines.requests.say import print_line

    delete_schedules(api, name, print_line)


COMMANDS = (submit, schedule)
