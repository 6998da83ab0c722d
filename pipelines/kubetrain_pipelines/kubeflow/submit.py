"""Start a run of a compiled pipeline."""

import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_pipelines.definitions.compiled_file import CompiledFile, stage_titles
from kubetrain_pipelines.definitions.images import image_warnings
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import Conflict, KfpError, Unanswered
from kubetrain_pipelines.kubeflow.server_version import check_runs_pipeline
from kubetrain_pipelines.requests import bring_code
from kubetrain_pipelines.requests.asked_run import AskedRun
from kubetrain_pipelines.requests.planned_run import check_before_sending, fill_form
from kubetrain_pipelines.requests.request_file import RequestFile
from kubetrain_pipelines.requests.say import Say
from kubetrain_pipelines.requests.secret_warnings import secret_warnings

DEFAULT_EXPERIMENT = "Default"


@dataclass(frozen=True, kw_only=True)
class RunOptions(AskedRun):
    """The options of a run, or of the runs of a schedule."""

    experiment: str = ""
    name: str = ""
    service_account: str = ""


@dataclass(frozen=True, kw_only=True)
class SubmittedRun:
    id: str
    name: str
    titles: Mapping[str, str] | None
    """The titles of its stages, by task; None if they are unknown."""


def submit_run(api: KfpApi, options: RunOptions, say: Say) -> SubmittedRun:
    """Start a run, and say which before an interrupt takes effect."""
    asked = options.read()
    file = file_of(asked)
    source = prepare_run(api, file, asked, options, say)
    name = options.name or f"{file.name} {datetime.now(UTC):%Y-%m-%d %H:%M:%S}"
    run_id = start_and_say(api, source, name, file.version, say)
    return SubmittedRun(id=run_id, name=name, titles=stage_titles(file.spec))


def file_of(asked: RequestFile) -> CompiledFile:
    """Return the pipeline that a request names, whose steps mount no output PVC if its output is in a store."""
    file = CompiledFile.find(asked.pipeline)
    return file.without_output_claim() if asked.request.get("storage", {}).get("output") else file


def start_and_say(api: KfpApi, source: Message, name: str, subject: str, say: Say) -> str:
    """Start a run of a version or a schedule, say which and where it is shown, and return its ID."""
    with interrupts_deferred("stopping once it is known whether the run has started"):
        run_id = start_run(api, source, name)
        page = api.connection.page_of(run_id)
        say(f"run {run_id} of {subject}{page and f': {page}'}")
    return run_id


def prepare_run(api: KfpApi, file: CompiledFile, asked: RequestFile, options: RunOptions, say: Say) -> Message:
    """Upload the pipeline if needed, and return the fields that a run and a schedule share."""
    code = bring_code.pack(options)
    brings = bring_code.with_code(asked, code)
    parameters, request = fill_form(file.parameters, brings), brings.request
    of_code = bring_code.check_scripts(code, check_before_sending(file, parameters))
    unpublished = image_warnings(file.content.decode(), request.get("pods"))
    for warning in (*secret_warnings(request), *unpublished, *of_code):
        say(f"warning: {warning}")
    check_runs_pipeline(api, file.content)
    bring_code.upload(code, request)
    version = ensure_version(api, file)
    say(f"{'uploaded' if version.is_new else 'unchanged:'} {file.version}")
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


@dataclass(frozen=True, kw_only=True)
class PipelineVersion:
    pipeline_id: str
    version_id: str
    is_new: bool

    @property
    def reference(self) -> Message:
        return {"pipeline_id": self.pipeline_id, "pipeline_version_id": self.version_id}


def ensure_version(api: KfpApi, file: CompiledFile) -> PipelineVersion:
    """Return the version with exactly this content, and create it if it is missing."""
    pipeline = find_or_create(
        lambda: _find(api, "pipelines", "/pipelines", file.name), lambda: api.post("/pipelines", _pipeline(api, file))
    )[0]["pipeline_id"]
    version, is_new = find_or_create(
        lambda: _find(api, "pipeline_versions", f"/pipelines/{pipeline}/versions", file.version),
        lambda: api.upload(
            "/pipelines/upload_version", file.path.name, file.content, name=file.version, pipelineid=pipeline
        ),
    )
    return PipelineVersion(pipeline_id=pipeline, version_id=version["pipeline_version_id"], is_new=is_new)


def find_or_create(find: Callable[[], Message | None], create: Callable[[], Message]) -> tuple[Message, bool]:
    """Return the object, and True if it was created. Names are unique, so concurrent callers get the same object."""
    if found := find():
        return found, False
    try:
        return create(), True
    except (Conflict, Unanswered):
        if found := find():
            return found, False
        raise


def _find(api: KfpApi, kind: str, path: str, name: str) -> Message | None:
    query = {"namespace": api.connection.namespace} if kind == "pipelines" else {}
    return api.find(kind, path, "name", name, **query)


def _pipeline(api: KfpApi, file: CompiledFile) -> Message:
    fields = {"name": file.name, "display_name": file.name, "description": file.description}
    return {**fields, "namespace": api.connection.namespace}
