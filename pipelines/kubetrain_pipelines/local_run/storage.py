"""The dataset and model storage of a local run: the user's, or an embedded S3 server.

The server keeps its objects in memory. They are saved as <workspace>/s3/<bucket>/<key> for the next run.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kubetrain_components.run.events import EventLog
from kubetrain_components.run.site import MIRROR_VARIABLE
from kubetrain_pipelines.definitions.pipeline_parameters import Parameter, framework_of, parameters_of, with_defaults
from kubetrain_pipelines.local_run.embedded_s3 import (
    NEEDS_DEMO,
    embedded_s3,
    last_line,
    replaced_environment,
    without_user_settings,
)
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_trainer.errors import InvalidSetting, KubetrainError

DATASETS, MODELS, DIGITS = "datasets", "models", "digits"
STAGE = "prepare_storage"
OTHER_PLACE = "free space or choose another folder with --workspace, or set dataset_uri to your own dataset"


def local_parameters(pipeline: str) -> list[Parameter]:
    """Return the parameters of `kubetrain run`, all of which are optional.

    Raises:
        InvalidSetting: if the pipeline does not exist or does not train.
    """
    framework_of(pipeline)
    local = [item for item in parameters_of(pipeline) if item.is_local]
    return with_defaults(local, {"dataset_uri": "", "model_uri": ""})


def with_local_uris(parameters: Mapping[str, Any], pipeline: str, workspace: Path) -> dict[str, Any]:
    """Return the parameters with defaults for the URIs that are not set.

    Without a dataset_uri, the run trains on scikit-learn's digits and uses the embedded S3 server.
    """
    if "dataset_uri" in parameters:
        models = (workspace / MODELS / pipeline).as_uri()
        dataset_uri = str(parameters["dataset_uri"])
        absolute = dataset_uri if "://" in dataset_uri or not dataset_uri else str(Path(dataset_uri).absolute())
        return {"model_uri": models, "s3_endpoint": "", **parameters, "dataset_uri": absolute}
    for name in ("model_uri", "s3_endpoint", "dataset_access"):
        if name in parameters:
            raise InvalidSetting(
                f"{name} is set without dataset_uri: set both, or neither to use the embedded S3 server"
            )
    return {**parameters, "dataset_uri": f"s3://{DATASETS}/{DIGITS}", "model_uri": f"s3://{MODELS}/{pipeline}"}


@contextlib.contextmanager
def local_storage(
    record: RunRecord, environment: Mapping[str, str], events: EventLog, show_events: Callable[[], None]
) -> Iterator[dict[str, str]]:
    """Start the embedded S3 server if the run needs it, add its URL to the parameters, and yield the environment."""
    if "s3_endpoint" in record.parameters:
        yield dict(environment)
        return
    folder = record.workspace / "s3"
    embedded = without_user_settings(environment)
    events.emit(STAGE, "started")
    show_events()
    write_digits_once(folder / DATASETS / DIGITS, embedded)
    buckets = {bucket: folder / bucket for bucket in (DATASETS, MODELS)}
    with replaced_environment(embedded), embedded_s3(embedded, record.workspace / "logs" / "s3.log", buckets) as server:
        record.parameters["s3_endpoint"] = server.url
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
