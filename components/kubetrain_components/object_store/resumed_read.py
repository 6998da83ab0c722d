"""An object read as a whole, however often its server or the network interrupts it."""

import time
from collections.abc import Iterator

from kubetrain_components.object_store.retries import AnnouncedRetries
from kubetrain_components.object_store.store import ObjectStore, StoredObject, StoreUnavailable


def read_resumed(store: ObjectStore, item: StoredObject) -> Iterator[bytes | memoryview]:
    """Yield the chunks of an object, each valid until the next one is read. An interruption repeats none.

    Raises:
        ObjectChanged: if it is not this object any more.
        StoreUnavailable: if nothing of it has come for minutes.
    """
    at, retries = 0, AnnouncedRetries()
    while at < item.size:
        try:
            for chunk in store.read(item.key, item.etag, at, item.size if at else None).chunks:
                at += len(chunk)
                retries.restart()
                yield chunk
            if at < item.size:
                raise StoreUnavailable(f"{store.uri.rstrip('/')}/{item.key} ended after {at} of {item.size} bytes")
        except StoreUnavailable as error:
            time.sleep(retries.pause_after(error))
