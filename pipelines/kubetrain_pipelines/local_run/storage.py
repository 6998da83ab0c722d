"""Where a local run's dataset comes from and its model goes to: the user's places, or an S3 server of its own.

<workspace>/s3/<bucket>/<key> is what the server holds: its memory ends with it, and the next run brings this back.
"""

import contextlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from kubetrain_components.run.events import EventLog
from kubetrain_pipelines.local_run.embedded_s3 import embedded_s3, own_environment, without_foreign_settings
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_pipelines.pipeline_parameters import Parameter, framework_of, parameters_of, with_defaults
from kubetrain_trainer.errors import InvalidSetting

DATASETS, MODELS, DIGITS = "datasets", "models", "digits"
STAGE = "prepare_storage"


def local_parameters(pipeline: str) -> list[Parameter]:
    """Return the parameters that `kubetrain run` takes, none of which is required.

    Raises:
        InvalidSetting: if the pipeline does not exist or does not train.
    """
    framework_of(pipeline)
    local = [each for each in parameters_of(pipeline) if each.is_local]
    return with_defaults(local, {"dataset_uri": "", "model_uri": ""})


def with_local_places(parameters: Mapping[str, Any], pipeline: str, workspace: Path) -> dict[str, Any]:
    """The run's parameters with what a user may leave out on one machine.

    Without a dataset of the user's the run trains on scikit-learn's digits, and everything is in the embedded S3.
    """
    if "dataset_uri" in parameters:
        models = (workspace / MODELS / pipeline).as_uri()
        dataset_uri = str(parameters["dataset_uri"])
        absolute = dataset_uri if "://" in dataset_uri or not dataset_uri else str(Path(dataset_uri).absolute())
        return {"model_uri": models, "s3_endpoint": "", **parameters, "dataset_uri": absolute}
    for name in ("model_uri", "s3_endpoint", "dataset_access"):
        if name in parameters:
            raise InvalidSetting(f"{name} is set without dataset_uri: a run without a dataset uses an S3 of its own")
    return {**parameters, "dataset_uri": f"s3://{DATASETS}/{DIGITS}", "model_uri": f"s3://{MODELS}/{pipeline}"}


@contextlib.contextmanager
def local_storage(
    record: RunRecord, environment: Mapping[str, str], events: EventLog, show_news: Callable[[], None]
) -> Iterator[dict[str, str]]:
    """The environment in which the run finds its storage; the embedded server's URL becomes a parameter of the run."""
    if "s3_endpoint" in record.parameters:
        yield dict(environment)
        return
    folder = record.workspace / "s3"
    embedded = without_foreign_settings(environment)
    events.emit(STAGE, "started")
    show_news()
    _write_digits_once(folder / DATASETS / DIGITS, embedded)
    buckets = {bucket: folder / bucket for bucket in (DATASETS, MODELS)}
    with own_environment(embedded), embedded_s3(embedded, record.workspace / "logs" / "s3.log", buckets) as server:
        record.parameters["s3_endpoint"] = server.url
        events.emit(STAGE, "finished", result={"endpoint": server.url})
        yield embedded
        server.mirror_bucket(MODELS, folder / MODELS)


def _write_digits_once(folder: Path, environment: Mapping[str, str]) -> None:
    """In a process of its own: a Ctrl-C in the middle of a large import may be lost."""
    if folder.is_dir():
        return
    partial = folder.with_name(f".{folder.name}.partial")
    command = [sys.executable, "-m", "kubetrain_pipelines.local_run.digits", str(partial)]
    subprocess.run(command, env=environment, check=True, start_new_session=True)
    partial.rename(folder)
