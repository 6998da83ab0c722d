"""The latest model in a store of models, and the git commit of an archive of code there."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kubetrain_components.object_store.retries import with_retries
from kubetrain_components.object_store.store import ObjectChanged, ObjectStore
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.manifest import PUBLISHED_DESCRIPTION
from kubetrain_trainer.output.model_folder import LATEST, describes_model

MAX_ATTEMPTS = 10


@dataclass(frozen=True, kw_only=True)
class PublishedModel:
    uri: str
    run_id: str
    image: str
    dataset_digest: str
    config_digest: str
    image_id: str = ""
    processes: int = 0
    """Number of training processes, which multiplies the batch size; 0: unknown."""
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    missing: Sequence[str] = ()
    """Files of the version that no longer exist, or are not as latest.json says."""

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
    described = store.find(f"{model['version']}/{PUBLISHED_DESCRIPTION}")
    if described is None or _read(store, described.key, described.etag) != model:
        yield PUBLISHED_DESCRIPTION
    for file in model["files"]:
        found = store.find(f"{model['version']}/{file['name']}")
        if found is None or found.size != file.get("size"):
            yield file["name"]


def find_latest(store: ObjectStore) -> dict[str, Any] | None:
    """Return the content of latest.json, or None if there is none.

    Raises:
        KubetrainError: if it is another program's.
    """
    for _ in range(MAX_ATTEMPTS):
        found = store.find(LATEST)
        try:
            return read_latest(store, found.etag) if found else None
        except ObjectChanged:
            continue  # a run is publishing its model right now
    raise KubetrainError(f"{store.uri}/{LATEST} changed {MAX_ATTEMPTS} times while being read: start the run again")


def read_latest(store: ObjectStore, etag: str) -> dict[str, Any]:
    """
    Raises:
        ObjectChanged: if latest.json was replaced.
        KubetrainError: if it is another program's.
    """
    model: dict[str, Any] = _read(store, LATEST, etag)
    if describes_model(model):
        return model
    raise KubetrainError(
        f"{store.uri.rstrip('/')}/{LATEST} does not describe a model that kubetrain published: delete it, or set "
        "model.uri to a prefix of its own"
    )


def _read(store: ObjectStore, key: str, etag: str) -> Any:
    """Return the content of the object; None if it is not JSON."""
    content = with_retries(lambda: store.read(key, etag).read())
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return None


def version_uri(store: ObjectStore, version: str) -> str:
    return f"{store.uri.rstrip('/')}/{version}/"


def write_commit(store: ObjectStore, digest: str, commit: str) -> None:
    """Write it beside the archive of code, which has the same digest in every commit with these files."""
    store.write(_key(digest), commit.encode())


def read_commit(store: ObjectStore, digest: str) -> str:
    """Return the commit; empty if it is unknown."""
    is_known = digest and store.find(_key(digest))
    return store.read(_key(digest)).read().decode() if is_known else ""


def _key(digest: str) -> str:
    return f".code/{digest}.commit"
