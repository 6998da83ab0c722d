"""A compiled pipeline in Kubeflow Pipelines: a new version of it only where the content is new."""

from collections.abc import Callable
from dataclasses import dataclass

from kubetrain_pipelines.kubeflow.compiled_file import CompiledFile
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi, Message, named
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
    """The version with this very content, made where it is missing."""
    pipeline = ensure(
        lambda: _only(api, "pipelines", "/pipelines", file.name),
        lambda: api.post("/pipelines", _pipeline(api, file)),
    )[0]["pipeline_id"]
    version, is_new = ensure(
        lambda: _only(api, "pipeline_versions", f"/pipelines/{pipeline}/versions", file.version),
        lambda: api.upload(
            "/pipelines/upload_version", file.path.name, file.content, name=file.version, pipelineid=pipeline
        ),
    )
    return PipelineVersion(pipeline_id=pipeline, version_id=version["pipeline_version_id"], is_new=is_new)


def ensure(find: Callable[[], Message | None], make: Callable[[], Message]) -> tuple[Message, bool]:
    """What is there, and whether it was made just now. Its name is taken once: two who make it get the same."""
    if found := find():
        return found, False
    try:
        return make(), True
    except (Conflict, Unanswered):
        if found := find():
            return found, False
        raise


def _only(api: KfpApi, kind: str, path: str, name: str) -> Message | None:
    query = {"namespace": api.connection.namespace} if kind == "pipelines" else {}
    return next(api.all_of(kind, path, filter=named("name", name), **query), None)


def _pipeline(api: KfpApi, file: CompiledFile) -> Message:
    described = {"name": file.name, "display_name": file.name, "description": file.description}
    return {**described, "namespace": api.connection.namespace}
