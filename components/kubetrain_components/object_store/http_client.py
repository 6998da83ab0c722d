"""Requests to the HTTP API of a store, from many threads at once, and what its refusals mean."""

import functools
import json
import os
import re
import ssl
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple
from urllib.parse import unquote, urljoin, urlsplit

import urllib3
from urllib3.util import make_headers

from kubetrain_components.no_proxy import environment_proxy
from kubetrain_components.object_store.ranges import range_problem, slice_chunks
from kubetrain_components.object_store.retries import seconds_to_wait, with_retries
from kubetrain_components.object_store.store import (
    AccessRefused,
    ObjectChanged,
    PermissionDenied,
    StoreError,
    StoreUnavailable,
)
from kubetrain_components.urls import proxy_url

TIMEOUT = urllib3.Timeout(connect=10, read=30)
MAX_CONNECTIONS = 64
REDIRECTED = (301, 302, 303, 307, 308)
MAX_REDIRECTS = 5
PERMANENT_STATUS = (501, 505)
CHUNK_BYTES = 256 << 10
SHOWN_BYTES = 1000
REASON = re.compile(r'"(?:message|error)": *"([^"]+)"|<Message>([^<\n]+)')
SECONDS_TO_RESET = re.compile(r"\bt=(\d+)")
LISTING = "the listing"
CHANGED = "{} was changed or deleted"
Headers = Mapping[str, str]
NO_HEADERS: Headers = MappingProxyType({})
Sign = Callable[[str, str, Headers], Headers]
"""Returns the headers of a request, from its method, URL and headers, together with those of the credentials."""


class ObjectMissing(ObjectChanged):
    """There is no such object."""


class Answer(NamedTuple):
    response: urllib3.BaseHTTPResponse
    headers: Headers
    """Those of redirects too, by lowercase name; those of the last response win."""


class HttpClient:
    def __init__(self, name: str, server: str, uri: str, remedy: str, sign: Sign | None, *, was_reached: bool) -> None:
        """
        Args:
            name: What messages call the service.
            remedy: What to do if access is refused.
            sign: None to send no credentials.
        """
        self._name, self._server, self._uri, self._remedy, self._sign = name, server, uri, remedy, sign
        self._was_reached = was_reached

    def send(
        self, method: str, url: str, what: str, headers: Headers = NO_HEADERS, body: bytes | IO[bytes] | None = None
    ) -> Answer:
        """Send a request and follow redirects, without the credentials if they lead to another server.

        Raises:
            StoreError: if the response is an error, or none arrives.
        """
        seen = dict[str, str]()
        for _ in range(MAX_REDIRECTS):
            is_own = urlsplit(url)[:2] == urlsplit(self._server)[:2]
            sent = self._sign(method, url, headers) if self._sign and is_own else headers
            with self._reaching(what):
                response = pool_of(url).request(
                    method, url, body=body, headers=sent, timeout=TIMEOUT, retries=False, redirect=False,
                    preload_content=False, decode_content=False,
                )  # fmt: skip
            self._was_reached = True
            seen |= {name.lower(): value for name, value in response.headers.items()}
            if response.status not in REDIRECTED or "location" not in response.headers:
                break
            response.drain_conn()
            url = urljoin(url, response.headers["location"])
        if 200 <= response.status < 300:
            return Answer(response, seen)
        raise self._refusal(method, what, response)

    def read(
        self, url: str, what: str, start: int, end: int | None, is_wanted: Callable[[Headers], bool], headers: Headers
    ) -> tuple[Headers, Iterator[bytes]]:
        """Return the headers of an object, and its bytes from start to end (exclusive).

        Raises:
            ObjectChanged: if the object is not the wanted one.
        """
        if end is not None and end <= start:
            raise StoreError(f"{what} of {self._uri} has no byte from {start} to {end}")
        is_part = start > 0 or end is not None
        span = {"range": f"bytes={start}-{'' if end is None else end - 1}"} if is_part else {}
        answer = self.send("GET", url, what, {**headers, **span})
        received = answer.headers.get("content-range", "")
        chunks = self.chunks(answer, what)
        if not is_wanted(answer.headers):
            answer.response.close()
            raise ObjectChanged(CHANGED.format(f"{what} of {self._uri}"))
        if is_part and answer.response.status == 200 and not received:
            chunks = slice_chunks(chunks, start, end)
        elif problem := range_problem(received, start, end):
            answer.response.close()
            raise StoreError(f"{what} of {self._uri}: {problem}")
        return answer.headers, chunks

    def chunks(self, answer: Answer, what: str) -> Iterator[bytes]:
        with self._reaching(what):
            try:
                yield from answer.response.stream(CHUNK_BYTES, decode_content=False)
            except GeneratorExit:  # the rest is not wanted
                answer.response.close()
                raise

    def body(self, method: str, url: str, what: str, headers: Headers = NO_HEADERS) -> tuple[Headers, bytes]:
        """Return the headers and the whole body of a response, which is asked for again for minutes."""

        def ask() -> tuple[Headers, bytes]:
            answer = self.send(method, url, what, headers)
            return answer.headers, b"".join(self.chunks(answer, what))

        return with_retries(ask)

    def parsed(self, url: str, what: str, parse: Callable[[bytes], Any] = json.loads) -> tuple[Headers, Any]:
        headers, body = self.body("GET", url, what)
        try:
            return headers, parse(body)
        except ValueError:
            raise StoreError(
                f"the answer of {self._server} for {what} of {self._uri} cannot be read, it begins with "
                f"{body[:100].decode(errors='replace')!r}: check the endpoint, and whether a proxy or a login page "
                "answers in its place"
            ) from None

    def upload(self, method: str, url: str, what: str, content: bytes | Path, headers: Headers = NO_HEADERS) -> bytes:
        """Send content, once, and return the body of the response."""
        size = content.stat().st_size if isinstance(content, Path) else len(content)
        with content.open("rb") if isinstance(content, Path) else nullcontext(content) as body:
            answer = self.send(method, url, what, {**headers, "content-length": str(size)}, body)
            return b"".join(self.chunks(answer, what))

    def delete(self, url: str, what: str) -> None:
        with suppress(ObjectMissing):
            self.body("DELETE", url, what)

    def _refusal(self, method: str, what: str, response: urllib3.BaseHTTPResponse) -> StoreError:
        status, said, wait = _described(response)
        at, where = f"{self._name} at {self._server}", f"{what} of {self._uri}"
        if status == 404 and what != LISTING and method in ("GET", "HEAD", "DELETE"):
            return ObjectMissing(f"{where} was deleted, or never existed")
        if status in (408, 429) or (status >= 500 and status not in PERMANENT_STATUS):
            message = f"{at} could not answer a request for {where}: {said}"
            return StoreUnavailable(message, is_overloaded=status in (429, 503), retry_after=wait)
        kinds: dict[int, tuple[type[StoreError], str]] = {
            401: (AccessRefused, f"{at} rejected the credentials for {self._uri} ({said}): {self._remedy}"),
            403: (PermissionDenied, f"access to {where} was denied ({said}): {self._remedy}"),
            404: (StoreError, f"{self._uri} does not exist at {self._server} ({said}): check its name"),
            409: (ObjectChanged, CHANGED.format(where)),
            412: (ObjectChanged, CHANGED.format(where)),
        }
        kind, message = kinds.get(status, (StoreError, f"{at} rejected a request for {where}: {said}"))
        return kind(message)

    @contextmanager
    def _reaching(self, what: str) -> Iterator[None]:
        try:
            yield
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise StoreUnavailable(
                f"cannot reach {self._name} at {self._server} for {what} of {self._uri} ({error}): check the endpoint "
                "and the network",
                was_reached=self._was_reached,
            ) from error


def write_conditionally(write: Callable[[], object], holds: Callable[[], bool]) -> None:
    """Write on a condition, for minutes.

    Args:
        holds: Returns True if the store has what was to be written.
    """
    attempts = 0

    def attempt() -> None:
        nonlocal attempts
        attempts += 1
        write()

    try:
        with_retries(attempt)
    except ObjectChanged:
        # The change may be this write: the server made it, but its answer was lost.
        if attempts == 1 or not with_retries(holds):
            raise


def pool_of(url: str) -> urllib3.PoolManager:
    """Return the connections to a server, through the proxy that the environment sets for it."""
    return _pool_through(proxy_url(environment_proxy(url, os.environ), "HTTPS_PROXY or HTTP_PROXY"))


@functools.cache
def _pool_through(proxy: str) -> urllib3.PoolManager:
    options: dict[str, Any] = {"maxsize": MAX_CONNECTIONS, "ssl_context": ssl.create_default_context()}
    if not proxy:
        return urllib3.PoolManager(**options)
    url = urlsplit(proxy)
    account = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else None
    return urllib3.ProxyManager(proxy, proxy_headers=make_headers(proxy_basic_auth=account), **options)


def _described(response: urllib3.BaseHTTPResponse) -> tuple[int, str, float]:
    """Return the status of a refusal, its reason, and the seconds that the server asks to wait."""
    headers = response.headers
    try:
        body = response.read(SHOWN_BYTES, decode_content=True).decode(errors="replace")
    except urllib3.exceptions.HTTPError:
        body = ""
    response.close()
    found = REASON.search(body)
    reason = headers.get("x-error-code") or headers.get("x-ms-error-code") or (found and (found[1] or found[2])) or ""
    reset = SECONDS_TO_RESET.search(headers.get("ratelimit", "")) if response.status == 429 else None
    wait = seconds_to_wait(headers.get("retry-after", ""), headers.get("date", ""))
    return response.status, f"{response.status} {reason}".strip(), wait or float(reset[1] if reset else 0)
