"""The port to objects under a URI. Adapters translate their SDK's errors into these."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from kubetrain_trainer.errors import KubetrainError


class Access(StrEnum):
    """As whom a store is asked."""

    CREDENTIALS = "credentials"
    ANONYMOUS = "anonymous"
    """Of a public bucket."""
    REQUESTER_PAYS = "requester-pays"
    """With credentials, whose account pays for the requests."""


class StoreError(KubetrainError):
    """The store could not do what it was asked; the message says what to look at."""


class StoreUnavailable(StoreError):
    """The store did not answer whole, or asked for patience: it may do so when asked again."""

    def __init__(self, sentence: str, *, is_overloaded: bool = False) -> None:
        super().__init__(sentence)
        self.is_overloaded = is_overloaded


class AccessRefused(StoreError):
    """The store does not know the credentials: no other request will fare better."""


class ObjectChanged(StoreError):
    """The object is not, or no longer, the one that was expected."""


class StoredObject(NamedTuple):
    key: str
    """Relative to the store's URI."""
    size: int
    etag: str
    """Changes when the content does."""


@dataclass(frozen=True)
class ObjectContent:
    chunks: Iterator[bytes | memoryview]
    """Each is there until the next one is asked for."""
    checksum: str | None = None
    """What the whole object must hash to, as algorithm:hex digits, where the store vouches for it."""

    def read(self) -> bytes:
        return b"".join(map(bytes, self.chunks))


class ObjectStore(Protocol):
    uri: str

    def list(self) -> Iterator[StoredObject]:
        """Every object under the URI, in no particular order.

        Raises:
            StoreError: where the place does not exist or cannot be reached.
        """
        ...

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        """The object's bytes in pieces, or a range of them: from start up to, without, end.

        Raises, at once or while the pieces are read:
            ObjectChanged: where it is gone, or is not the one with this etag.
            StoreError: where the object has no byte in the range, or reading fails.
        """
        ...

    def checksum(self, key: str, etag: str) -> str | None:
        """What the object must hash to, without reading it; None: the store does not vouch for it.

        Raises:
            ObjectChanged: where it is gone, or is not the one with this etag.
        """
        ...

    def write(self, key: str, content: bytes | Path) -> None:
        """Make or replace the object, which is listed and read whole or not at all.

        Raises:
            StoreError: where it cannot be written.
        """
        ...

    def find(self, key: str) -> StoredObject | None:
        """The object with this key, or None where there is none."""
        ...

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        """Replace the object that has this etag; None: write where there is none.

        Raises:
            ObjectChanged: where someone else wrote meanwhile.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete the object if it exists.

        Raises:
            StoreError: if it cannot be deleted.
        """
        ...
