"""One request to an API server, as a value."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode, urlsplit

from kubetrain_components.manifest import Manifest

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
