"""`kubetrain status`: show what a run or a job does now, once or until it ends."""

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubetrain_components import WORKSPACE
from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.shown_values import describe_seconds
from kubetrain_pipelines.cli.runs import next_commands
from kubetrain_pipelines.jobs.cluster_jobs import connect_for_job
from kubetrain_pipelines.kubeflow.connection import ENDPOINT_VARIABLES, Connection
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.kubeflow.follow_run import snapshots
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import Forbidden, KfpError, NotFound, Unauthorized
from kubetrain_pipelines.kubeflow.run import Run, find_run, read_run, recent_runs, titles_of
from kubetrain_pipelines.kubeflow.run_in_cluster import RETRY_SECONDS
from kubetrain_pipelines.kubeflow.run_results import publication_of
from kubetrain_pipelines.requests.say import Say, print_line
from kubetrain_pipelines.status.cluster import ClusterReader, KubeflowReader
from kubetrain_pipelines.status.local import read_local
from kubetrain_pipelines.status.rows import local_time, rows_of, wrapped
from kubetrain_pipelines.status.screen import follow, open_screen
from kubetrain_pipelines.status.snapshot import Snapshot
from kubetrain_trainer.errors import InvalidSetting, KubetrainError, RunFailed


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


def status_and_show(options: StatusOptions) -> None:
    """
    Raises:
        RunFailed: if it is watched and fails or is canceled, with the cause if it is known.
    """
    connection = None if options.run and Path(options.run).exists() else options.connection()
    if options.watch and (options.as_json or (connection and not options.run)):
        raise InvalidSetting("--watch needs a RUN, and cannot be combined with --json")
    if connection and not options.run:
        return _show_runs(recent_runs(KfpApi(connection)), as_json=options.as_json)
    subject = _find(options, connection)
    if options.watch:
        return _watch(subject)
    snapshot = subject.read()
    lines = wrapped(rows_of(snapshot, time.time()))
    return print(json.dumps(snapshot.to_dict(), indent=2) if options.as_json else "\n".join(lines))


def _find(options: StatusOptions, connection: Connection | None) -> Subject:
    """
    Raises:
        KubetrainError: if nothing on this machine, in Kubeflow Pipelines or in the cluster has this name.
    """
    path = Path(options.run or WORKSPACE)
    if path.exists():
        return _local(path)
    if not options.run:
        raise InvalidSetting(
            f"there is no {WORKSPACE} here, and no Kubeflow Pipelines endpoint: name a job or a workspace, or set "
            f"--endpoint or {ENDPOINT_VARIABLES[0]}"
        )
    if connection is None:
        return _in_cluster(options.run, options.namespace)
    try:
        return _in_kubeflow(KfpApi(connection), options.run)
    except (NotFound, Unauthorized, Forbidden) as missing:
        return _job_or(missing, options.run, (options.namespace, connection.pods_namespace))


def _job_or(missing: KfpError, name: str, namespaces: Iterable[str]) -> Subject:
    """Return the job of this name, or raise the error if there is none."""
    for namespace in dict.fromkeys(namespaces):
        with suppress(KubetrainError):
            subject = _in_cluster(name, namespace)
            subject.read()
            return subject
    raise missing


def _local(path: Path) -> Subject:
    read = partial(read_local, path)
    return Subject(read=read, follow=partial(follow, read))


def _in_kubeflow(api: KfpApi, wanted: str) -> Subject:
    message = find_run(api, wanted)
    run_id, titles, reader = message["run_id"], titles_of(api, message), KubeflowReader(api)
    return Subject(
        read=lambda: reader.snapshot(Run.of(message, titles)),
        follow=lambda say: map(reader.snapshot, snapshots(api, run_id, titles, say)),
        next_commands=next_commands(run_id),
        publication=lambda: _publication_of(api, run_id, titles),
    )


def _publication_of(api: KfpApi, run_id: str, titles: Mapping[str, str] | None) -> str:
    with suppress(KfpError):  # the run has succeeded, even if the server does not answer anymore
        return publication_of(api, read_run(api, run_id, titles))
    return ""


def _in_cluster(name: str, namespace: str) -> Subject:
    api = connect_for_job(namespace, RETRY_SECONDS, f"'{name}' is not a folder")
    read = partial(ClusterReader(api).read_named, name)
    return Subject(read=read, follow=partial(follow, read))


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


def _show_runs(runs: Sequence[Run], *, as_json: bool) -> None:
    if as_json:
        return print(json.dumps([run.to_dict() for run in runs], indent=2))
    if not runs:
        print("no runs yet: start one with `kubetrain submit`")
    for run in runs:
        took = describe_seconds(run.seconds)
        print(f"{run.id}  {run.state:<9}  {local_time(run.created)}  {took:>9}  {run.name}")
    return None
