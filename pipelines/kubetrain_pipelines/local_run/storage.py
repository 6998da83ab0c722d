"""The dataset and model storage of a local run: the user's, or an embedded S3 server.

The server keeps its objects in memory. They are saved as <workspace>/s3/<bucket>/<key> for the next run.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from kubetrain_components.object_store.sources import sources_of, text_of
from kubetrain_components.run.events import EventLog
from kubetrain_components.run.request import Request, by_name, merged
from kubetrain_components.run.site import MIRROR_VARIABLE
from kubetrain_pipelines.definitions.pipeline_parameters import REQUIRED
from kubetrain_pipelines.local_run.embedded_s3 import (
    NEEDS_DEMO,
    embedded_s3,
    last_line,
    replaced_environment,
    without_user_settings,
)
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.requests.planned_run import Definition, find_definition
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

DATASETS, MODELS, DIGITS = "datasets", "models", "digits"
STAGE = "prepare_storage"
OF_OWN_STORE = {"data.endpoint", "data.access", "model.uri"}
OTHER_PLACE = "free space or choose another folder with --workspace, or set data.uri to your own dataset"


def with_local_uris(request: Request, pipeline: str, workspace: Path) -> Request:
    """Return the request with defaults for the URIs that are not set.

    Raises:
        InvalidSetting: if a run on the example dataset sets the store.
    """
    definition = find_definition(pipeline)
    if uses_example(request, definition):
        for name in sorted(OF_OWN_STORE.intersection(by_name(request))):
            raise InvalidSetting(f"{name} is set without data.uri: set both, or neither to use the embedded S3 server")
        embedded = {"data": {"uri": f"s3://{DATASETS}/{DIGITS}"}, "model": {"uri": f"s3://{MODELS}/{definition.name}"}}
        return merged(request, embedded)
    uri = request.get("data", {}).get("uri", "")
    places = {name: each if "://" in each else str(Path(each).absolute()) for name, each in sources_of(uri).items()}
    folder = {"data": {"uri": text_of(places)}} if uri else {}
    has_models = any(item.name == "model_uri" for item in definition.parameters)
    models = {"model": {"uri": (workspace / MODELS / definition.name).as_uri()}} if has_models else {}
    return merged(models, request, folder)


def uses_example(request: Request, definition: Definition) -> bool:
    """Return True if the run trains on scikit-learn's digits from the embedded S3 server: its form has an
    empty data_uri, and data.uri is not set, not even to nothing."""
    fields = {item.name: item for item in definition.parameters}
    is_needed = "data_uri" in fields and fields["data_uri"].default in ("", REQUIRED) and "data_endpoint" in fields
    return is_needed and "uri" not in request.get("data", {})


@contextlib.contextmanager
def local_storage(
    record: RunRecord, environment: Mapping[str, str], events: EventLog, show_events: Callable[[], None]
) -> Iterator[dict[str, str]]:
    """Start the embedded S3 server if the run needs it, add its URL to the settings, and yield the environment."""
    if not uses_example(record.asked, find_definition(record.pipeline)):
        yield dict(environment)
        return
    folder = record.workspace / "s3"
    embedded = without_user_settings(environment)
    events.emit(STAGE, "started")
    show_events()
    write_digits_once(folder / DATASETS / DIGITS, embedded)
    buckets = {bucket: folder / bucket for bucket in (DATASETS, MODELS)}
    with replaced_environment(embedded), embedded_s3(embedded, record.workspace / "logs" / "s3.log", buckets) as server:
        record.settings["data"]["endpoint"] = server.url
        events.emit(STAGE, "finished", result={"endpoint": server.url})
        restored = server.etags(MODELS)
        yield {**embedded, MIRROR_VARIABLE: str(folder)}
        server.save_new_objects(MODELS, folder / MODELS, restored)


def write_digits_once(folder: Path, environment: Mapping[str, str]) -> None:
    """Write the digits in a separate process, because Ctrl-C during a large import may be lost."""
    if folder.is_dir():
        return
    partial = folder.with_name(f".{folder.name}.partial")
    command = [sys.executable, "-m", "kubetrain_pipelines.local_run.digits", str(partial)]
    done = subprocess.run(command, env=environment, check=False, start_new_session=True, capture_output=True, text=True)
    if done.returncode:
        remedy = NEEDS_DEMO if "ModuleNotFoundError" in done.stderr else OTHER_PLACE
        raise KubetrainError(f"cannot write the example dataset ({last_line(done.stderr)}): {remedy}")
    partial.rename(folder)
