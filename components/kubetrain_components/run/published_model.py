"""The model that latest.json names."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore
from kubetrain_trainer.errors import KubetrainError

LATEST = "latest.json"
SCHEMA = "kubetrain/model/v1"
TEXTS = ("version", "run_id", "image", "dataset_digest", "config_digest")
"""Names in latest.json that every release has written as strings."""


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    uri: str
    run_id: str
    image: str
    dataset_digest: str
    config_digest: str
    image_id: str = ""
    processes: int = 0
    """Number of training processes, which multiplies the batch size; 0: an older release did not record it."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    missing: Sequence[str] = ()
    """Files of the version that no longer exist, or have another size."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def latest_model(store: ObjectStore) -> PublishedModel | None:
    """Return the latest model, or None if there is none.

    Raises:
        KubetrainError: if latest.json is another program's.
    """
    model = find_latest(store)
    if model is None:
        return None
    recorded = {name: model[name] for name in PublishedModel.__dataclass_fields__ if name in model}
    return PublishedModel(uri=version_uri(store, model["version"]), missing=[*_missing(store, model)], **recorded)


def _missing(store: ObjectStore, model: Mapping[str, Any]) -> Iterator[str]:
    for file in ({"name": "model.json"}, *model["files"]):
        found = store.find(f"{model['version']}/{file['name']}")
        if found is None or found.size != file.get("size", found.size):
            yield file["name"]


def find_latest(store: ObjectStore) -> dict[str, Any] | None:
    """Return the content of latest.json, or None if there is none or it is being replaced right now.

    Raises:
        KubetrainError: if it is another program's.
    """
    found = store.find(LATEST)
    try:
        return read_latest(store, found.etag) if found else None
    except ObjectChanged:
        return None


def read_latest(store: ObjectStore, etag: str) -> dict[str, Any]:
    """
    Raises:
        ObjectChanged: if latest.json was replaced.
        KubetrainError: if it is another program's.
    """
    content = with_retries(lambda: store.read(LATEST, etag).read())
    try:
        model: dict[str, Any] = json.loads(content)
        if _describes_model(model):
            return model
    except (ValueError, TypeError, KeyError):
        pass
    raise KubetrainError(
        f"{store.uri.rstrip('/')}/{LATEST} does not describe a model that kubetrain published: delete it, or set "
        "model_uri to a prefix of its own"
    )


def _describes_model(model: dict[str, Any]) -> bool:
    """Raise a KeyError or TypeError, or return False, if it does not."""
    names = [file["name"] for file in model["files"]]
    return model["schema"] == SCHEMA and all(isinstance(text, str) for text in [*names, *(model[n] for n in TEXTS)])


def version_uri(store: ObjectStore, version: str) -> str:
    return f"{store.uri.rstrip('/')}/{version}/"
