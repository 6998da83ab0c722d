"""`kubetrain submit`: start a run of a compiled pipeline, and follow it to its end."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from kubetrain_components.interrupts import interrupted_by_sigterm, interrupts_deferred
from kubetrain_pipelines import bring_code
from kubetrain_pipelines.kubeflow.compiled_file import CompiledFile, stage_titles
from kubetrain_pipelines.kubeflow.follow_run import follow_run
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError, Unanswered
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.run_state import RunState
from kubetrain_pipelines.kubeflow.server_version import check_runs_pipeline
from kubetrain_pipelines.kubeflow.step_logs import causes_of
from kubetrain_pipelines.kubeflow.upload import ensure_version, find_or_create
from kubetrain_pipelines.parse_parameters import parse_parameters
from kubetrain_pipelines.planned_run import check_before_sending
from kubetrain_pipelines.run_view import open_view

DEFAULT_EXPERIMENT = "Default"


class RunFailed(KfpError):
    """The run ended without success."""


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """The options of a run, or of the runs of a schedule."""

    pipeline: str
    pairs: tuple[str, ...] = ()
    params: Path | None = None
    code: Path | None = None
    experiment: str = ""
    name: str = ""
    service_account: str = ""


def submit_and_show(api: KfpApi, options: RunOptions, *, detach: bool = False) -> None:
    """
    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
    """
    file = CompiledFile.find(options.pipeline)
    source = prepare_run(api, file, options)
    with interrupts_deferred():  # a run that was started must be reported
        run_id = start_run(api, source, options.name or f"{file.name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}")
        print(f"run {run_id} of {file.version}", flush=True)
    if detach:
        print(_next_commands(run_id))
    else:
        follow_and_show(api, run_id, stage_titles(file.spec))


def prepare_run(api: KfpApi, file: CompiledFile, options: RunOptions) -> Message:
    """Upload the pipeline if needed, and return the fields that a run and a schedule share."""
    code = bring_code.pack(options.code)
    parameters = parse_parameters(file.parameters, [*options.pairs, *bring_code.as_pairs(code)], options.params)
    check_before_sending(file.name, file.parameters, parameters)
    check_runs_pipeline(api, file.content)
    bring_code.upload(code, file.parameters, parameters)
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
    """Start a run and return its ID. If the answer is lost, find the run by a unique mark so that none starts twice."""
    mark = f"submitted by kubetrain, {secrets.token_hex(8)}"
    try:
        created = api.post("/runs", {**source, "display_name": name, "description": mark})
    except Unanswered as error:
        found = api.find("runs", "/runs", "description", mark, namespace=api.connection.namespace)
        if found is None:
            raise KfpError(f"{error}; no run has started so far: check `kubetrain status`, then try again") from error
        created = found
    return str(created["run_id"])


def experiment_id(api: KfpApi, name: str) -> str:
    """Return the ID of the experiment with this name, and create it if it is missing."""
    in_namespace = {"namespace": api.connection.namespace}
    created, _ = find_or_create(
        lambda: api.find("experiments", "/experiments", "display_name", name, **in_namespace),
        lambda: api.post("/experiments", {"display_name": name, **in_namespace}),
    )
    return str(created["experiment_id"])


def follow_and_show(api: KfpApi, run_id: str, titles: Mapping[str, str] | None) -> None:
    """
    Raises:
        RunFailed: if the run fails or is canceled, with the cause if it is known.
    """
    console = Console()
    view = open_view(console)

    def say(line: str) -> None:
        console.print(line, markup=False, highlight=False, soft_wrap=True)

    try:
        with interrupted_by_sigterm():
            run = follow_run(api, run_id, titles, view, say)
    except (KeyboardInterrupt, KfpError):
        say(f"run {run_id} continues: {_next_commands(run_id)}")
        raise
    finally:
        view.close()
    conclude(api, run)


def conclude(api: KfpApi, run: Run) -> None:
    if run.state is RunState.SUCCEEDED:
        print(f"run {run.id} succeeded")
        return
    if run.state is RunState.FAILED:
        causes = "; ".join(causes_of(api, run)) or f"see `kubetrain logs {run.id}`, or its page in the UI"
        raise RunFailed(f"run {run.id} failed: {causes}")
    raise RunFailed(f"run {run.id} was {run.state.value}")


def _next_commands(run_id: str) -> str:
    return f"follow it with `kubetrain status {run_id} --watch`, cancel it with `kubetrain cancel {run_id}`"
