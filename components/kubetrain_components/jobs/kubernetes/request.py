"""One request to an API server, as a value, and a response that is read while it arrives: a watch, or a log."""

import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.exceptions import HTTPError, ReadTimeoutError

from kubetrain_components.jobs.kubernetes.errors import StreamCut, StreamSilent
from kubetrain_components.manifest import Manifest

CHUNK_BYTES = 64 << 10

OBJECT_PATH = re.compile(r"/namespaces/[^/]+/(?P<resource>[^/]+)(?P<name>/[^/]+)?(?P<subresource>/.+)?$")


@dataclass(frozen=True)
class Request:
    method: str
    address: str
    query: Mapping[str, Any]
    body: Manifest | None = None
    read_timeout: float | None = None
    is_stream: bool = False

    def __str__(self) -> str:
        return f"{self.method} {urlsplit(self.address).path}"

    @property
    def operation(self) -> str:
        """The unit of permissions: the method and the kind of object, without the object's name."""
        found = OBJECT_PATH.search(self.address)
        verb = f"{self.method}{' watch' if 'watch' in self.query else ''}"
        if found is None:
            return f"{verb} {self.address}"
        return f"{verb} {found['resource']}{'/*' if found['name'] else ''}{found['subresource'] or ''}"

    @property
    def url(self) -> str:
        return f"{self.address}?{urlencode(self.query)}" if self.query else self.address

    @property
    def headers(self) -> dict[str, str]:
        kind = "merge-patch+json" if self.method == "PATCH" else "json"
        return {"Accept": "application/json, */*", "User-Agent": "kubetrain", "Content-Type": f"application/{kind}"}

    @property
    def content(self) -> bytes | None:
        return None if self.body is None else json.dumps(self.body).encode()


class Stream:
    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self.is_stopped = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._response.stream(CHUNK_BYTES, decode_content=False):
                if self.is_stopped:  # once its socket is shut down, TLS returns undeciphered data
                    raise StreamCut("the stream was stopped")
                yield chunk
        except ReadTimeoutError as error:
            raise StreamSilent(f"the API server sent nothing more ({error})") from error
        except (HTTPError, OSError) as error:
            raise StreamCut(f"the API server's response was cut short ({error})") from error

    def stop(self) -> None:
        """Stop the stream, from any thread; its reader gets a StreamCut."""
        self.is_stopped = True
        with contextlib.suppress(Exception):  # it has ended already
            self._response.shutdown()
