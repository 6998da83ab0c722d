"""Load a published model from an object store, or from a folder of this machine."""

from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kubetrain_components.fetch_model.fetch import fetch_model, fetch_named
from kubetrain_components.object_store.open_store import check_uri, local_path, names_directory, open_store
from kubetrain_components.object_store.store import ObjectStore
from kubetrain_components.run.published_model import find_latest
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.load_model import LoadedModel
from kubetrain_trainer.models.load_model import load_model as load_folder
from kubetrain_trainer.output.manifest import PUBLISHED_DESCRIPTION


def load_model(uri: str | PathLike[str], *, s3_endpoint: str = "", **options: Any) -> LoadedModel:
    """Load a version of a model, or the latest one under the model_uri of a pipeline.

    Args:
        uri: s3://BUCKET/PREFIX, gs://…, az://… or a path.
        s3_endpoint: URL of the S3 server; empty: AWS.
        options: See kubetrain_trainer.models.load_model.

    Raises:
        InvalidSetting: if the URI is neither of a store nor the path of a folder.
        KubetrainError: if the model is missing or damaged, or its network cannot be built.
    """
    check_uri("the URI", str(uri))
    if names_directory(str(uri)):
        return load_folder(local_path(str(uri)), **options)
    store = open_store(str(uri), s3_endpoint)
    with TemporaryDirectory() as folder:
        return load_folder(_fetched(store, Path(folder)), **options)


def _fetched(store: ObjectStore, folder: Path) -> Path:
    """Fetch the version that the store has itself, or that latest.json names, and return its folder."""
    if store.find(PUBLISHED_DESCRIPTION):
        return fetch_model(store, "", folder / store.uri.rstrip("/").rpartition("/")[2]).path
    if latest := find_latest(store):
        return fetch_named(store, latest, folder / latest["version"]).path
    raise KubetrainError(
        f"no model is published under {store.uri}: it has neither {PUBLISHED_DESCRIPTION} nor latest.json"
    )
