"""The step: upload the model, then point latest.json at it."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from kubetrain_components.object_store.store import ObjectChanged, ObjectStore
from kubetrain_components.promote_model.description import Origin, describe_model
from kubetrain_components.run.published_model import MAX_ATTEMPTS, find_latest, read_latest, version_uri
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.model_folder import LATEST
from kubetrain_trainer.output.training_output import TrainingOutput

STAMP_FORMAT = "%Y%m%dT%H%M%SZ"
MAX_CLOCK_ERROR = timedelta(hours=1)


@dataclass(frozen=True, kw_only=True)
class Promotion:
    version: str
    uri: str
    is_latest: bool
    """False: a newer run was already published and stays the latest."""
    before: str = ""
    """The version that it replaced as the latest; empty: none."""
    note: str = ""
    """The reason that latest.json names another version, or a version of a wrong clock that it named before."""


def promote_model(output: TrainingOutput, store: ObjectStore, origin: Origin) -> Promotion:
    """Publish the exported model as a new version, and point latest.json at it unless a newer run is published."""
    created = datetime.fromisoformat(output.read_config()["created"])
    version = f"{created.strftime(STAMP_FORMAT)}-{origin.run_id.replace('-', '')[:8]}"
    model = describe_model(output, version, origin)
    latest = find_latest(store)  # a damaged latest.json would leave the version behind without a name
    for file in model["files"]:
        store.write(f"{version}/{file['name']}", output.export / file["name"])
    store.write(f"{version}/model.json", _json(model))
    is_latest, note = _update_latest(store, model)
    before = latest["version"] if latest and is_latest and latest["version"] != version else ""
    uri = version_uri(store, version)
    return Promotion(version=version, uri=uri, is_latest=is_latest, before=before, note=note)


def already_published(reused: Mapping[str, Any]) -> Promotion:
    note = f"unchanged since run {reused['run_id']}, so nothing was trained"
    version = reused["uri"].rstrip("/").rpartition("/")[2]
    return Promotion(version=version, uri=reused["uri"], is_latest=True, note=note)


def _update_latest(store: ObjectStore, model: Mapping[str, Any]) -> tuple[bool, str]:
    """Point latest.json at this version unless it names a newer one: versions sort by the time of their run."""
    for _ in range(MAX_ATTEMPTS):
        found = store.find(LATEST)
        try:
            before = read_latest(store, found.etag)["version"] if found else ""
            if model["version"] < before <= _greatest_stamp():
                return False, f"{LATEST} still names {before}, of a newer run"
            store.write_if(LATEST, _json(model), found.etag if found else None)
        except ObjectChanged:
            continue  # another run was published at the same time
        return True, f"{LATEST} named {before}, which is dated in the future" if before > model["version"] else ""
    raise KubetrainError(f"{store.uri}/{LATEST} changed {MAX_ATTEMPTS} times while being updated: start the run again")


def _greatest_stamp() -> str:
    """Return the stamp that only the version of a wrong clock exceeds, which must not stay the latest for years."""
    return (datetime.now(UTC) + MAX_CLOCK_ERROR).strftime(STAMP_FORMAT)


def _json(value: Mapping[str, Any]) -> bytes:
    return (json.dumps(value, indent=2, sort_keys=True) + "\n").encode()
