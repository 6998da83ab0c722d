"""`kubetrain submit`: a run of a compiled pipeline, followed to its end."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from kubetrain_components.interrupts import interrupted_by_sigterm, interrupts_deferred
from kubetrain_pipelines.kubeflow.compiled_file import CompiledFile, stage_titles
from kubetrain_pipelines.kubeflow.evidence import causes_of
from kubetrain_pipelines.kubeflow.follow_run import follow_run
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message, named
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, Unanswered
from kubetrain_pipelines.kubeflow.parameters import run_parameters
from kubetrain_pipelines.kubeflow.run import Run, RunState
from kubetrain_pipelines.kubeflow.upload import ensure, ensure_version
from kubetrain_pipelines.run_view import open_view

DEFAULT_EXPERIMENT = "Default"


class RunFailed(KfpError):
    """The run is over, and has not what it was to bring."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """What the command line says of a run, or of the runs of a schedule."""

    pipeline: str
    pairs: tuple[str, ...] = ()
    params: Path | None = None
    experiment: str = ""
    name: str = ""
    service_account: str = ""


def submit_and_show(api: KfpApi, options: RunOptions, *, detach: bool = False) -> None:
    """
    Raises:
        RunFailed: with the cause, as far as it can be told.
    """
    file = CompiledFile.find(options.pipeline)
    source = prepare(api, file, options)
    with interrupts_deferred():  # a run that is started has its name said
        run_id = start_run(api, source, options.name or f"{file.name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}")
        print(f"run {run_id} of {file.version}", flush=True)
    if detach:
        print(_how_to_go_on(run_id))
    else:
        follow_and_show(api, run_id, stage_titles(file.spec))


def prepare(api: KfpApi, file: CompiledFile, options: RunOptions) -> Message:
    """What a run and a schedule have in common."""
    parameters = run_parameters(file.parameters, options.pairs, options.params)
    version = ensure_version(api, file)
    print(f"{'uploaded' if version.is_new else 'unchanged:'} {file.version}", flush=True)
    account = {"service_account": options.service_account} if options.service_account else {}
    return {
        "pipeline_version_reference": version.reference,
        "runtime_config": {"parameters": parameters},
        "experiment_id": experiment_id(api, options.experiment or DEFAULT_EXPERIMENT),
        **account,
    }


def start_run(api: KfpApi, source: Message, name: str) -> str:
    """Its id. Where the answer is lost, it is looked for by a mark of its own: nothing is started twice."""
    mark = f"submitted by kubetrain, {secrets.token_hex(8)}"
    try:
        created = api.post("/runs", {**source, "display_name": name, "description": mark})
    except Unanswered as trouble:
        query = {"namespace": api.connection.namespace, "filter": named("description", mark)}
        found = next(api.all_of("runs", "/runs", **query), None)
        if found is None:
            raise KfpError(
                f"{trouble}; no run has been started so far: see `kubetrain status`, then try again"
            ) from trouble
        created = found
    return str(created["run_id"])


def experiment_id(api: KfpApi, name: str) -> str:
    """Of the experiment of this name, made where it is missing."""
    where = {"namespace": api.connection.namespace}
    created, _ = ensure(
        lambda: next(api.all_of("experiments", "/experiments", filter=named("display_name", name), **where), None),
        lambda: api.post("/experiments", {"display_name": name, **where}),
    )
    return str(created["experiment_id"])


def follow_and_show(api: KfpApi, run_id: str, titles: Mapping[str, str]) -> None:
    """
    Raises:
        RunFailed: with the cause, as far as it can be told.
    """
    console = Console()
    view = open_view(console)

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        with interrupted_by_sigterm():
            run = follow_run(api, run_id, titles, view, say)
    except (KeyboardInterrupt, KfpError):
        say(f"run {run_id} goes on: {_how_to_go_on(run_id)}")
        raise
    finally:
        view.close()
    conclude(api, run)


def conclude(api: KfpApi, run: Run) -> None:
    if run.state is RunState.SUCCEEDED:
        print(f"run {run.id} succeeded")
        return
    if run.state is RunState.FAILED:
        causes = "; ".join(causes_of(api, run)) or f"look at its logs: `kubetrain logs {run.id}`, or its page in the UI"
        raise RunFailed(f"run {run.id} failed: {causes}")
    raise RunFailed(f"run {run.id} was {run.state.value}")


def _how_to_go_on(run_id: str) -> str:
    return f"`kubetrain status {run_id} --watch` follows it, `kubetrain cancel {run_id}` ends it"
