"""The admission of a run: check its parameters and the stores that it names before anything is created."""

from collections.abc import Mapping
from pathlib import PurePosixPath
from typing import Any

from kubetrain_components.object_store.open_store import local_path, names_directory, open_store
from kubetrain_components.object_store.probe_writes import probe_writes
from kubetrain_components.object_store.sources import sources_of
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.published_model import find_latest
from kubetrain_components.run.request import parameters_of
from kubetrain_components.run.transfer_container import in_image, transfer_placement, with_cache, with_code, with_output
from kubetrain_trainer.errors import InvalidSetting


def admit_run(request: Mapping[str, Mapping[str, Any]], *, trainer_image: str, **of_run: Any) -> RunParameters:
    """Check the settings of a run, and add to its pods the containers that they ask for.

    Args:
        trainer_image: Image of the training pods, unless the request sets another.
        of_run: The fields of RunParameters that no setting sets.

    Raises:
        InvalidSetting: for the first setting that cannot be used, with the remedy.
    """
    asked = parameters_of(request, **of_run)
    return with_code(with_output(with_cache(in_image(asked, trainer_image))))


def check_model_store(parameters: RunParameters) -> None:
    """Check that the run can publish a model, before it trains one.

    Raises:
        KubetrainError: if the store refuses writes, or latest.json is another program's.
    """
    if not parameters.framework:
        return
    uris = filter(None, (parameters.storage.output, parameters.model_uri))
    *outputs, models = [open_store(uri, parameters.s3_endpoint) for uri in uris]
    for store in (*outputs, models):
        if lack := probe_writes(store):
            print(f"warning: {lack}", flush=True)
    find_latest(models)


def check_pods_can_reach(parameters: RunParameters) -> None:
    """
    Raises:
        InvalidSetting: if the dataset or the models would be in a directory that no pod has.
    """
    for uri in filter(None, sources_of(parameters.dataset_uri).values()):
        if names_directory(uri) and not _is_mounted(uri, parameters):
            raise _directory_error("data.uri", uri)
    for name, uri in {"model.uri": parameters.model_uri, "storage.output": parameters.storage.output}.items():
        if parameters.framework and uri and names_directory(uri):
            raise _directory_error(name, uri)


def _is_mounted(uri: str, parameters: RunParameters) -> bool:
    """Return True if the dataset is in a volume that the settings of the transfer mount."""
    directory = PurePosixPath(local_path(uri))
    mounts = transfer_placement(parameters).main.get("volumeMounts") or []
    return any(directory.is_relative_to(mount["mountPath"]) for mount in mounts)


def _directory_error(setting: str, uri: str) -> InvalidSetting:
    return InvalidSetting(
        f"{setting} '{uri}' is the path of a directory, which the pods of a cluster do not have: write s3://BUCKET/PREFIX"
    )
