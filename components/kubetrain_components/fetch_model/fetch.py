"""Fetch the latest model, which the gate compares a new one with.

python -m kubetrain_components.fetch_model.fetch --uri s3://bucket/models --to /latest-model
"""

import argparse
import shutil
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.resumed_read import read_resumed
from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore, StoreUnavailable
from kubetrain_components.run.published_model import find_latest
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.latest_model import MODEL, note_fetched
from kubetrain_trainer.output.manifest import PUBLISHED_DESCRIPTION
from kubetrain_trainer.output.model_folder import (
    DamagedModel,
    ModelFolder,
    check_latest,
    check_version,
    open_model,
    read_description,
)
from kubetrain_trainer.termination import report_failure


def fetch_latest(store: ObjectStore, folder: Path) -> None:
    """Fetch the latest model into a folder, or note there that none is published, or why this one cannot be fetched.

    Raises:
        StoreUnavailable: if another attempt may succeed.
    """
    version, problem = "", ""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder / MODEL, ignore_errors=True)
    try:
        if latest := find_latest(store):
            version = str(latest["version"])
            fetch_named(store, latest, folder / MODEL)
    except StoreUnavailable:
        raise
    except KubetrainError as error:
        problem = str(error)
    note_fetched(folder, version, problem)
    print(f"the latest model: {problem or version or 'none is published yet'}", flush=True)


def fetch_named(store: ObjectStore, latest: Mapping[str, Any], folder: Path) -> ModelFolder:
    """Fetch the version that latest.json names, as fetch_model() does."""
    model = fetch_model(store, f"{latest['version']}/", folder)
    check_latest(latest, model, store.uri.rstrip("/"))
    return model


def fetch_model(store: ObjectStore, prefix: str, folder: Path) -> ModelFolder:
    """Fetch the model whose model.json has this prefix in the store, and verify every file.

    Raises:
        KubetrainError: if it is missing or damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    _fetch(store, prefix, PUBLISHED_DESCRIPTION, folder)
    for file in read_description(folder / PUBLISHED_DESCRIPTION)["files"]:
        _fetch(store, prefix, file["name"], folder)
    model = open_model(folder)
    check_version(model, f"{store.uri.rstrip('/')}/{prefix}".rstrip("/").rpartition("/")[2])
    return model


def _fetch(store: ObjectStore, prefix: str, name: str, folder: Path) -> None:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if (item := with_retries(partial(store.find, f"{prefix}{name}"))) is None:
            raise ObjectChanged("it does not exist")
        with path.open("wb") as file:
            file.writelines(read_resumed(store, item))
    except ObjectChanged as error:
        raise DamagedModel(f"{store.uri.rstrip('/')}/{prefix}{name} is missing: publish the model again") from error


def main() -> int:
    parser = argparse.ArgumentParser(description="Fetch the latest model, if there is one.", allow_abbrev=False)
    for flag in ("--uri", "--endpoint", "--to"):
        parser.add_argument(flag, required=flag != "--endpoint", default="")
    parsed = parser.parse_args()
    try:
        fetch_latest(open_store(parsed.uri, parsed.endpoint), Path(parsed.to))
    except KubetrainError as error:
        print(f"error: {error}", flush=True)
        report_failure(str(error), curable=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
