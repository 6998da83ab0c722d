"""Upload a compiled pipeline to Kubeflow Pipelines, as a new version only if its content is new."""

from collections.abc import Callable
from dataclasses import dataclass

from kubetrain_pipelines.kubeflow.compiled_file import CompiledFile
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message
from kubetrain_pipelines.kubeflow.kfp_errors import Conflict, Unanswered


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
        lambda: _find(api, "pipelines", "/pipelines", file.name),
        lambda: api.post("/pipelines", _pipeline(api, file)),
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
