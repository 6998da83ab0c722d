"""`kubetrain submit`, `schedule`, `status`, `logs` and `cancel`: parsing only, and one line to what does it."""

from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from kubetrain_pipelines.kubeflow.kfp_api import KfpApi

# Only what parsing needs is imported above: `kubetrain --help` answers at once.

FILE = click.Path(path_type=Path)
NAMESPACE = click.option("--namespace", default="", help="The profile, where Kubeflow Pipelines has several users.")
LOGIN = (
    click.option("--endpoint", default="", help="Of Kubeflow Pipelines; default: KUBETRAIN_KFP_ENDPOINT."),
    click.option("--token-file", type=FILE, help="Holds a token; default: KF_PIPELINES_TOKEN, or the pod's own."),
    click.option(
        "--cookie-file", type=FILE, help="Holds a session's cookie, NAME=VALUE; default: KF_PIPELINES_COOKIE."
    ),
    click.option("--ca-file", type=FILE, help="Certificate that the server's is signed by."),
)
PARAMETERS = (
    click.option("--set", "pairs", multiple=True, metavar="NAME=VALUE", help="A parameter, or a setting in one."),
    click.option("--params", type=FILE, help="JSON object of parameters; --set counts for more."),
)
RUN = (
    *PARAMETERS,
    click.option("--experiment", default="", help="Made where it is missing; default: Default."),
    click.option("--service-account", default="", help="That the run's steps have; default: the server's choice."),
)
RUN_NAMES = ("pairs", "params", "experiment", "service_account")
CONNECTION_NAMES = ("endpoint", "namespace", "token_file", "cookie_file", "ca_file")

Command = Callable[..., None]


def with_connection(command: Command) -> Command:
    """Its first argument is the API that the options name."""

    @wraps(command)
    def connected(**options: Any) -> None:
        from kubetrain_pipelines.kubeflow.connection import Connection
        from kubetrain_pipelines.kubeflow.kfp_api import KfpApi

        connection = {name: options.pop(name) for name in CONNECTION_NAMES}
        command(KfpApi(Connection(**connection)), **options)

    return with_options(NAMESPACE, *LOGIN)(connected)


def with_options(*options: Callable[[Command], Command]) -> Callable[[Command], Command]:
    """In the order in which help shows them."""

    def decorated(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return decorated


@click.command()
@click.argument("pipeline")
@with_options(*RUN)
@click.option("--name", default="", help="Of the run; default: the pipeline's, and the time.")
@click.option("--detach", is_flag=True, help="Start it, and do not follow it.")
@with_connection
def submit(api: "KfpApi", detach: bool, **options: Any) -> None:
    """Start a run of PIPELINE (a compiled file, or its name in ./compiled) and follow it to its verdict."""
    from kubetrain_pipelines.kubeflow.submit import RunOptions, submit_and_show

    submit_and_show(api, RunOptions(**options), detach=detach)


@click.command()
@click.argument("run", default="")
@click.option("--watch", is_flag=True, help="Follow it to its verdict.")
@click.option("--json", "as_json", is_flag=True, help="As JSON.")
@with_connection
def status(api: "KfpApi", run: str, watch: bool, as_json: bool) -> None:
    """How RUN (an id, or a name) is, with why it failed; without RUN the last runs."""
    from kubetrain_pipelines.kubeflow.run_status import status_and_show

    status_and_show(api, run, watch=watch, as_json=as_json)


@click.command()
@click.argument("run")
@click.option("--stage", default="", help="Of this stage alone, such as launch-training.")
@click.option("--follow", is_flag=True, help="To the end of the run.")
@with_connection
def logs(api: "KfpApi", run: str, stage: str, follow: bool) -> None:
    """What the steps of RUN wrote."""
    from kubetrain_pipelines.kubeflow.run_logs import logs_and_show

    logs_and_show(api, run, stage, follow=follow)


@click.command()
@click.argument("run")
@with_connection
def cancel(api: "KfpApi", run: str) -> None:
    """End RUN, and see that no job of it goes on."""
    from kubetrain_pipelines.kubeflow.cancel_run import cancel_and_show

    cancel_and_show(api, run)


@click.command()
@click.argument("pipeline", default="")
@click.option("--cron", default="", help="Six fields, seconds first: '0 0 2 * * *' is each night at two.")
@click.option("--every", default="", help="Instead of --cron: 30m, 6h, 1d.")
@with_options(*RUN)
@click.option("--name", default="", help="Of the schedule, which replaces one of this name; default: the pipeline's.")
@click.option("--max-concurrency", type=click.IntRange(1, 10), default=1, show_default=True, help="Runs at a time.")
@click.option("--catchup", is_flag=True, help="Start later what a stopped server missed.")
@click.option("--timezone", default="", help="Refused: the server has one for all schedules.")
@click.option("--list", is_flag=True, help="List the schedules.")
@click.option("--pause", metavar="NAME", default="", help="Start no more runs by this schedule.")
@click.option("--resume", metavar="NAME", default="", help="Start runs by it again.")
@click.option("--delete", metavar="NAME", default="", help="Delete it, not its runs.")
@with_connection
def schedule(api: "KfpApi", **options: Any) -> None:
    """Run PIPELINE by the clock, or replace its schedule; nothing overlaps, nothing missed is caught up with."""
    from kubetrain_pipelines.kubeflow.schedule import ScheduleOptions, schedule_and_show
    from kubetrain_pipelines.kubeflow.submit import RunOptions

    run = {name: options.pop(name) for name in (*RUN_NAMES, "pipeline", "name")}
    schedule_and_show(api, RunOptions(**run), ScheduleOptions(**options))


COMMANDS = (submit, schedule, status, logs, cancel)
