"""The weights that a training starts from: found in S3, and brought to the root of the outputs as a version.

<output root>/.weights/versions/<digest>/data/…    an object, or the files of a published model
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePosixPath

from kubetrain_components.expose_dataset.expose import version_path
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import ObjectStore, PermissionDenied, StoredObject
from kubetrain_components.run.parameters import RunParameters
from kubetrain_components.run.published_model import find_latest, version_uri
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.output.manifest import PUBLISHED_DESCRIPTION
from kubetrain_trainer.output.model_folder import LATEST

FOLDER = ".weights"


class OneObject:
    """A store in which an object is alone."""

    def __init__(self, store: ObjectStore, only: StoredObject) -> None:
        self.uri, self._only = f"{store.uri.rstrip('/')}/{only.key}", only
        self.read, self.checksum, self.find = store.read, store.checksum, store.find
        self.write, self.write_if, self.delete = store.write, store.write_if, store.delete

    def list(self) -> Iterator[StoredObject]:
        yield self._only


Found = tuple[ObjectStore, str]
"""A store, and the name of the object that is wanted of it; empty: all of them."""


def find_weights(uri: str, endpoint: str) -> Found:
    """
    Raises:
        InvalidSetting: if there is neither an object nor a published model.
        PermissionDenied: if these credentials may not read it. S3 says the same of what does not exist to those who may
            not list the bucket.
    """
    kinds = [_find_object, _find_published, _find_latest]
    if "." not in uri.rpartition("/")[2]:  # what is not there may be refused, too: look first where it probably is
        kinds.append(kinds.pop(0))
    denials = []
    for find in kinds:
        try:
            if found := find(uri.rstrip("/"), endpoint):
                return found
        except PermissionDenied as denial:
            denials.append(denial)
    if denials:
        raise denials[0]
    raise InvalidSetting(
        f"model.start: {uri} is neither an object nor a published model (a folder with {PUBLISHED_DESCRIPTION} or "
        f"{LATEST}): name one"
    )


def _find_object(uri: str, endpoint: str) -> Found | None:
    folder, _, name = uri.rpartition("/")
    if folder == "s3:/":  # the whole bucket
        return None
    parent = open_store(folder, endpoint)
    found = parent.find(name)
    return (OneObject(parent, found), name) if found else None


def _find_published(uri: str, endpoint: str) -> Found | None:
    store = open_store(uri, endpoint)
    return (store, "") if store.find(PUBLISHED_DESCRIPTION) else None


def _find_latest(uri: str, endpoint: str) -> Found | None:
    store = open_store(uri, endpoint)
    latest = find_latest(store)
    return (open_store(version_uri(store, latest["version"]), endpoint), "") if latest else None


def place_of(digest: str, name: str) -> str:
    """Return the path under the root of the outputs."""
    return str(PurePosixPath(FOLDER, version_path(digest), "data", name))


def with_brought_weights(parameters: RunParameters, place: str) -> RunParameters:
    """Return the parameters, whose training starts from the weights in this place, if the sync has brought any."""
    if not place:
        return parameters
    return replace(parameters, train_config=replace(parameters.train_config, initial_weights=place))
