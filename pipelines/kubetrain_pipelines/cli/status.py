"""`kubetrain status`: show what a run or a job does now, once or until it ends."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubetrain_components import WORKSPACE
from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.shown_values import describe_seconds
from kubetrain_pipelines.cli.find import FoundRun, find
from kubetrain_pipelines.cli.runs import next_commands
from kubetrain_pipelines.kubeflow.connection import ENDPOINT_VARIABLES, Connection
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.kubeflow.follow_run import snapshots
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.run import Run, read_run, recent_runs, titles_of
from kubetrain_pipelines.kubeflow.run_results import publication_of
from kubetrain_pipelines.requests.say import Say, print_line
from kubetrain_pipelines.status.cluster import ClusterReader, KubeflowReader
from kubetrain_pipelines.status.local import read_local
from kubetrain_pipelines.status.rows import local_time, rows_of, wrapped
from kubetrain_pipelines.status.screen import follow, open_screen
from kubetrain_pipelines.status.snapshot import Snapshot
from kubetrain_trainer.errors import InvalidSetting, RunFailed


@dataclass(frozen=True, kw_only=True)
class StatusOptions(ConnectionOptions):
    run: str = ""
    watch: bool = False
    as_json: bool = False


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A run or a job to show."""

    read: Callable[[], Snapshot]
    follow: Callable[[Say], Iterator[Snapshot]]
    next_commands: str = ""
    """How to continue if it is left alone."""
    publication: Callable[[], str] = str
    """Returns what became of the model, if anything is known."""
    page: str = ""
    """The address at which the UI of Kubeflow Pipelines shows it."""


def status_and_show(options: StatusOptions) -> None:
    """
    Raises:
        RunFailed: if it is watched and fails or is canceled, with the cause if it is known.
    """
    connection = None if options.run else options.connection()
    if options.watch and (options.as_json or connection):
        raise InvalidSetting("--watch needs a RUN, and cannot be combined with --json")
    if connection:
        return _show_runs(recent_runs(KfpApi(connection)), connection, as_json=options.as_json)
    name = options.run or _workspace()
    subject = _subject(name, find(name, options))
    if options.watch:
        return _watch(subject)
    snapshot = subject.read()
    lines = wrapped(rows_of(snapshot, time.time()))
    facts = {**snapshot.to_dict(), **({"page": subject.page} if snapshot.run else {})}
    return print(json.dumps(facts, indent=2) if options.as_json else "\n".join(lines))


def _workspace() -> str:
    if not Path(WORKSPACE).exists():
        raise InvalidSetting(
            f"there is no {WORKSPACE} here, and no Kubeflow Pipelines endpoint: name a job or a workspace, or set "
            f"--endpoint or {ENDPOINT_VARIABLES[0]}"
        )
    return WORKSPACE


def _subject(name: str, found: Path | FoundRun | KubernetesApi) -> Subject:
    match found:
        case FoundRun():
            return _in_kubeflow(found)
        case KubernetesApi():
            read = partial(ClusterReader(found).read_named, name)
        case path:
            read = partial(read_local, path)
    return Subject(read=read, follow=partial(follow, read))


def _in_kubeflow(found: FoundRun) -> Subject:
    api, run_id = found.api, found.id
    titles, reader = titles_of(api, found.message), KubeflowReader(api)
    return Subject(
        read=lambda: reader.snapshot(Run.of(found.message, titles)),
        follow=lambda say: map(reader.snapshot, snapshots(api, run_id, titles, say)),
        next_commands=next_commands(run_id),
        publication=lambda: _publication_of(api, run_id, titles),
        page=api.connection.page_of(run_id),
    )


def _publication_of(api: KfpApi, run_id: str, titles: Mapping[str, str] | None) -> str:
    with suppress(KfpError):  # the run has succeeded, even if the server does not answer anymore
        return publication_of(api, read_run(api, run_id, titles))
    return ""


def _watch(subject: Subject) -> None:
    snapshot = Snapshot()
    with interrupted_by_sigterm():
        try:
            with open_screen() as screen:
                for snapshot in subject.follow(screen.say):
                    screen.show(rows_of(snapshot, time.time()))
        except (KeyboardInterrupt, KfpError):
            if snapshot.name:
                print_line(f"{snapshot.name} continues{subject.next_commands and f': {subject.next_commands}'}")
            raise
    if snapshot.failure:
        raise RunFailed(f"{snapshot.name} {snapshot.failure}")
    publication = subject.publication()
    print(f"{snapshot.name} succeeded{publication and f': {publication}'}")


def _show_runs(runs: Sequence[Run], connection: Connection, *, as_json: bool) -> None:
    if as_json:
        return print(json.dumps([{**run.to_dict(), "page": connection.page_of(run.id)} for run in runs], indent=2))
    if not runs:
        print("no runs yet: start one with `kubetrain submit`")
    for run in runs:
        took = describe_seconds(run.seconds)
        print(f"{run.id}  {run.state:<9}  {local_time(run.created)}  {took:>9}  {run.name}")
    return None
