"""The check that the pods of a cluster can reach the stores that a run names."""

from pathlib import PurePosixPath

from kubetrain_components.object_store.open_store import local_path, names_directory
from kubetrain_components.run.parameters import RunParameters
from kubetrain_trainer.errors import InvalidSetting


def check_pods_can_reach(parameters: RunParameters) -> None:
    """
    Raises:
        InvalidSetting: if the dataset or the models would be in a directory that no pod has.
    """
    if names_directory(parameters.dataset_uri) and not _is_mounted(parameters):
        raise _directory_error("dataset_uri", parameters.dataset_uri)
    if parameters.framework and names_directory(parameters.model_uri):
        raise _directory_error("model_uri", parameters.model_uri)


def _is_mounted(parameters: RunParameters) -> bool:
    """Return True if the dataset is in a volume that the settings of the transfer mount."""
    directory = PurePosixPath(local_path(parameters.dataset_uri))
    mounts = parameters.storage.transfer.get("volume_mounts", [])
    return any(directory.is_relative_to(mount["mountPath"]) for mount in mounts)


def _directory_error(setting: str, uri: str) -> InvalidSetting:
    return InvalidSetting(
        f"{setting} '{uri}' is the path of a directory, which the pods of a cluster do not have: write s3://BUCKET/PREFIX"
    )
