"""The model that latest.json names, and the reasons to train another."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore

LATEST = "latest.json"


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    uri: str
    run_id: str
    image: str
    dataset_digest: str
    config_digest: str
    metrics: Mapping[str, float | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def latest_model(store: ObjectStore) -> PublishedModel | None:
    """Return the latest model, or None if none is published or it is being replaced right now."""
    found = store.find(LATEST)
    if found is None:
        return None
    try:
        model = read_latest(store, found.etag)
    except ObjectChanged:
        return None
    names = ("run_id", "image", "dataset_digest", "config_digest", "metrics")
    return PublishedModel(uri=version_uri(store, model["version"]), **{name: model[name] for name in names})


def read_latest(store: ObjectStore, etag: str) -> dict[str, Any]:
    """
    Raises:
        ObjectChanged: if latest.json was replaced.
    """
    content: dict[str, Any] = json.loads(with_retries(lambda: store.read(LATEST, etag).read()))
    return content


def version_uri(store: ObjectStore, version: str) -> str:
    return f"{store.uri.rstrip('/')}/{version}/"


def reason_to_train(latest: PublishedModel | None, dataset_digest: str, config_digest: str, image: str) -> str:
    """Return why the latest model cannot be reused; empty if it can."""
    if "@sha256:" not in image:
        return f"the image {image} has no digest, so it may have changed"
    if latest is None:
        return "no model is published yet"
    changes = {
        "dataset": (latest.dataset_digest, dataset_digest),
        "configuration": (latest.config_digest, config_digest),
        "image": (latest.image, image),
    }
    changed = [f"the {name} is now {now}, not {before}" for name, (before, now) in changes.items() if before != now]
    return "; ".join(changed)
