"""The port to objects under a URI, and the errors into which adapters translate those of their SDKs."""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple, Protocol

from kubetrain_trainer.errors import KubetrainError


class Access(StrEnum):
    """The identity that requests to a store use."""

    CREDENTIALS = "credentials"
    ANONYMOUS = "anonymous"
    """No credentials: the bucket is public."""
    REQUESTER_PAYS = "requester-pays"
    """Credentials, whose account pays for the requests."""


class StoreError(KubetrainError):
    """A request to the store failed; the message says what to check."""


class StoreUnavailable(StoreError):
    """The store did not answer completely or is overloaded: a retry may succeed."""

    is_curable = True

    def __init__(
        self, message: str, *, is_overloaded: bool = False, retry_after: float = 0.0, was_reached: bool = True
    ) -> None:
        super().__init__(message)
        self.is_overloaded = is_overloaded
        self.retry_after = retry_after
        """The seconds that the store asks to wait."""
        self.was_reached = was_reached
        """False if the store has never answered."""


class AccessRefused(StoreError):
    """The store rejects the credentials, so every other request would fail too."""


class PermissionDenied(StoreError):
    """The store accepts the credentials, but not for this. It may say so of what does not exist."""


class ObjectChanged(StoreError):
    """The object is not the expected one: it was changed, deleted or never existed."""


class StoredObject(NamedTuple):
    key: str
    """Relative to the store's URI."""
    size: int
    etag: str
    """A tag that changes with the content."""


@dataclass(frozen=True)
class ObjectContent:
    chunks: Iterator[bytes | memoryview]
    """Each chunk is valid until the next one is read."""
    checksum: str | None = None
    """Checksum of the whole object, as algorithm:hex digits; None if the store reports none."""
    is_etag: bool = False
    """True if the checksum is the ETag: it looks like an MD5, but some servers make up such ETags."""

    def read(self, limit: int | None = None) -> bytes:
        """Return all bytes, or the first ones: more than the limit are not held in memory."""
        parts, count = [], 0
        for chunk in self.chunks:
            parts.append(bytes(chunk))
            count += len(chunk)
            if limit is not None and count > limit:
                break
        return b"".join(parts)[:limit]


class ObjectStore(Protocol):
    uri: str

    def list(self) -> Iterator[StoredObject]:
        """List every object under the URI, in any order.

        Raises:
            StoreError: if the location does not exist or cannot be reached.
        """
        ...

    def read(self, key: str, etag: str | None = None, start: int = 0, end: int | None = None) -> ObjectContent:
        """Read the object, or its bytes from start to end (exclusive).

        Raises, now or while the chunks are read:
            ObjectChanged: if the object is gone or has another ETag.
            StoreError: if the object has no bytes in the range, or reading fails.
        """
        ...

    def checksum(self, key: str, etag: str) -> str | None:
        """Return the checksum that the store reports for the object, without reading it; None if it reports none.

        Raises:
            ObjectChanged: if the object is gone or has another ETag.
        """
        ...

    def write(self, key: str, content: bytes | Path) -> None:
        """Create or replace the object atomically.

        Raises:
            StoreError: if it cannot be written.
        """
        ...

    def find(self, key: str) -> StoredObject | None:
        """Return the object with this key, or None if it does not exist."""
        ...

    def write_if(self, key: str, content: bytes, etag: str | None) -> None:
        """Replace the object if it has this ETag; with None, create it if it does not exist.

        Raises:
            ObjectChanged: if another writer was faster.
        """
        ...

    def delete(self, key: str) -> None:
        """Delete the object if it exists.

        Raises:
            StoreError: if it cannot be deleted.
        """
        ...


def beginning_of_keys(prefix: str) -> str:
    """Return what the keys of the objects under a prefix begin with: it and one slash, or nothing if it is empty."""
    return f"{prefix.strip('/')}/" if prefix.strip("/") else ""
