"""The model that latest.json names, and whether a run would only make it again."""

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
    """None: nothing was published yet, or is being replaced at this moment."""
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
        ObjectChanged: where it is another one by now.
    """
    content: dict[str, Any] = json.loads(with_retries(lambda: store.read(LATEST, etag).read()))
    return content


def version_uri(store: ObjectStore, version: str) -> str:
    return f"{store.uri.rstrip('/')}/{version}/"


def why_to_train(latest: PublishedModel | None, dataset_digest: str, config_digest: str, image: str) -> str:
    """What a training would do otherwise than that of the latest model; empty where nothing."""
    if "@sha256:" not in image:
        return f"the image {image} is not named by its digest, so that nobody knows whether it is the same"
    if latest is None:
        return "no model was published yet"
    changes = {
        "dataset": (latest.dataset_digest, dataset_digest),
        "configuration": (latest.config_digest, config_digest),
        "image": (latest.image, image),
    }
    changed = [f"the {name} is {now}, no longer {before}" for name, (before, now) in changes.items() if before != now]
    return "; ".join(changed)
