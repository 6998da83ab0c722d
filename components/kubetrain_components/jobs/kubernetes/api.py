"""Requests to one Kubernetes API server: JSON in and out, with retries of transient errors."""

import contextlib
import json
import logging
import math
import random
import re
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Self, TypeVar

import urllib3
from urllib3.exceptions import HTTPError, LocationValueError, NameResolutionError, ReadTimeoutError

from kubetrain_components.interrupts import interrupts_deferred
from kubetrain_components.jobs.kubernetes.access.connection import AccessError, Connection
from kubetrain_components.jobs.kubernetes.access.credentials import Credential
from kubetrain_components.jobs.kubernetes.access.kubeconfig import find_connection
from kubetrain_components.jobs.kubernetes.access.transport import Transport, raise_descriptor_limit
from kubetrain_components.jobs.kubernetes.errors import (
    Conflict,
    Gone,
    KubernetesError,
    Misconfigured,
    NotFound,
    StreamCut,
    StreamSilent,
    Transient,
    Unauthorized,
    Unreachable,
    check_response,
)
from kubetrain_components.jobs.kubernetes.request import Request, Stream
from kubetrain_components.jobs.kubernetes.retries import ServerHistory, Waiting
from kubetrain_components.manifest import Manifest

RETRY_SECONDS = 300.0
CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0
ANSWER_SECONDS = 0.5
PAGE_SIZE = 500
WARNING = re.compile(r'\d{3} \S+ "((?:[^"\\]|\\.)*)"')

log = logging.getLogger(__name__)
T = TypeVar("T")


class KubernetesApi:
    """Requests to one API server, in one namespace, from any number of threads.

    Streams have their own connections. The one for all other requests stays open between them: a launcher that is told
    to stop has only a second left to delete its job.
    """

    def __init__(self, connection: Connection, namespace: str = "", retry_seconds: float = RETRY_SECONDS) -> None:
        self.connection = connection
        self.namespace = namespace or connection.namespace or "default"
        self.retry_seconds = retry_seconds
        self.max_seconds = math.inf
        """The longest time for an answer, and for retries. It is lowered for the last requests of a process, because
        other threads may still set retry_seconds."""
        self._host = connection.server
        self._transport = Transport(connection)
        self._history = ServerHistory()
        self._warnings_shown: set[str] = set()

    @classmethod
    def connect(cls, namespace: str = "", retry_seconds: float = RETRY_SECONDS, context: str = "") -> Self:
        """Connect to the cluster of $KUBECONFIG, else to this pod's cluster, else to that of the default kubeconfig.

        Args:
            namespace: Empty: the one of that configuration.
            context: Context of the kubeconfig; empty: that of $KUBETRAIN_CONTEXT, else its current one.
        """
        raise_descriptor_limit()
        try:
            return cls(find_connection(context), namespace, retry_seconds)
        except (AccessError, OSError) as error:
            raise Misconfigured(str(error)) from error

    def path(self, group_version: str, plural: str, name: str = "") -> str:
        """Return the path of a kind of object in our namespace, or of one object."""
        root = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def get(self, path: str, *, retry_seconds: float | None = None, **query: Any) -> Manifest | None:
        with contextlib.suppress(NotFound):
            return self._json(Request("GET", self._host + path, query), retry_seconds)
        return None

    def list_all(self, path: str, keep: Callable[[Manifest], Manifest] = dict, **query: Any) -> Manifest | None:
        """Return a list with all of its items, read page by page; None if the path does not exist.

        Args:
            keep: Returns the part of an item to keep in memory.
        """
        try:
            return self._list_pages(path, keep, {**query, "limit": PAGE_SIZE})
        except Gone:  # the server has forgotten the version that the pages are of
            return self._list_pages(path, keep, query)

    def _list_pages(self, path: str, keep: Callable[[Manifest], Manifest], query: Mapping[str, Any]) -> Manifest | None:
        if (found := self.get(path, **query)) is None:
            return None
        page, items = found, [keep(item) for item in found.get("items") or []]
        while token := (page.get("metadata") or {}).get("continue"):
            page = self.get(path, **query, **{"continue": token}) or {}
            items += [keep(item) for item in page.get("items") or []]
        return {**found, "items": items}

    def create(self, path: str, body: Manifest, **query: Any) -> Manifest:
        """Return the created object. Fields that the server does not know are an error.

        Raises:
            Conflict: if the name is taken; perhaps by this very object, if an earlier response was lost.
        """
        return self._json(Request("POST", self._host + path, {"fieldValidation": "Strict", **query}, body))

    def patch(self, path: str, body: Manifest, retry_seconds: float | None = None) -> Manifest | None:
        """Merge body into the object and return it; None if it does not exist."""
        with contextlib.suppress(NotFound):
            return self._json(Request("PATCH", self._host + path, {}, body), retry_seconds)
        return None

    def delete(
        self, path: str, *, uid: str = "", resource_version: str = "", retry_seconds: float | None = None
    ) -> bool:
        """Delete the object and return True; False if it is gone or has another uid or resource_version."""
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Background"}
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options["preconditions"] = {name: value for name, value in conditions.items() if value}
        try:
            self._json(Request("DELETE", self._host + path, {}, options), retry_seconds)
        except (NotFound, Conflict):
            return False
        return True

    @contextlib.contextmanager
    def stream(
        self, path: str, *, read_timeout: float, retry_seconds: float | None = None, **query: Any
    ) -> Iterator[Stream]:
        """Open a response that is read while it arrives.

        Raises:
            StreamCut: if the response breaks off, also while it is read.
            StreamSilent: if nothing arrives for read_timeout seconds.
        """
        request = Request("GET", self._host + path, query, read_timeout=read_timeout, is_stream=True)
        response = self._send(request, retry_seconds, self._open)
        stream = Stream(response)
        try:
            yield stream
        except StreamCut as error:
            if not stream.is_stopped and not isinstance(error, StreamSilent):
                self._history.note_trouble()
            raise
        finally:
            response.close()

    def _json(self, request: Request, retry_seconds: float | None = None) -> Manifest:
        return self._send(request, retry_seconds, self._parse)

    def _parse(self, response: urllib3.BaseHTTPResponse) -> Manifest:
        try:
            return {**json.loads(response.data)}
        except (ValueError, TypeError) as error:
            raise self._foreign("text that is no JSON object") from error

    def _open(self, response: urllib3.BaseHTTPResponse) -> urllib3.BaseHTTPResponse:
        if "text/html" in response.headers.get("Content-Type", ""):  # a login page or a gateway's
            raise self._foreign("a web page")
        return response

    def _foreign(self, answer: str) -> Misconfigured:
        return Misconfigured(
            f"{self._host} answers with {answer}, so it is not a Kubernetes API server: check KUBECONFIG"
        )

    def _send(self, request: Request, retry_seconds: float | None, read: Callable[[urllib3.BaseHTTPResponse], T]) -> T:
        """Send the request, and retry it until it succeeds or time is up."""
        if retry_seconds is None:
            retry_seconds = min(self.retry_seconds, self.max_seconds)
        waiting = Waiting(str(request), retry_seconds, tells_at_once=request.method == "POST")
        for pause in _pauses():
            try:
                # An interrupt takes effect between two tries of a creation, when it is known if the object exists.
                wake = partial(_stop_if_late, time.monotonic())
                with interrupts_deferred(wake=wake) if request.method == "POST" else contextlib.nullcontext():
                    answer = read(self._exchange(request))
            except Transient as error:
                self._history.note_trouble()
                asked = min(error.retry_after, MAX_PAUSE_SECONDS, retry_seconds / 4)  # it may ask for more than we have
                waiting.wait(max(pause, asked), error, self._unreachable(request, error))
            except KubernetesError as error:
                if not self._history.is_stray(request.operation, error):
                    raise
                waiting.wait(pause, error, error)
            else:
                self._history.note_answer(request.operation)
                return answer
        raise AssertionError("pauses never end")

    def _unreachable(self, request: Request, error: Exception) -> Unreachable:
        return Unreachable(
            f"the API server {self._host} could not answer {request} before the timeout ({error}): "
            "check that it is running, then start again"
        )

    def _exchange(self, request: Request) -> urllib3.BaseHTTPResponse:
        """Send the request once, and once more if its credentials were rejected and there are fresh ones."""
        try:
            credentials = self._transport.credentials
            credential = credentials.current()
            try:
                return self._exchange_with(credential, request)
            except Unauthorized:
                if not credentials.renew(credential):
                    raise
                return self._exchange_with(credentials.current(), request)
        except AccessError as error:
            raise Misconfigured(str(error)) from error
        except OSError as error:  # while a certificate or token was read, perhaps for lack of file descriptors
            raise Transient(str(error)) from error

    def _exchange_with(self, credential: Credential, request: Request) -> urllib3.BaseHTTPResponse:
        timeout = urllib3.Timeout(
            connect=min(CONNECT_TIMEOUT_SECONDS, self.max_seconds),
            read=min(request.read_timeout or READ_TIMEOUT_SECONDS, self.max_seconds),
        )
        try:
            response = self._transport.request(
                credential,
                request.method,
                request.url,
                request.headers,
                is_stream=request.is_stream,
                body=request.content,
                timeout=timeout,
            )
            content = b"" if response.status < 300 else response.data
            if credential.authorization:  # a proxy may repeat our headers
                content = content.replace(credential.authorization.encode(), b"(our credentials)")
        except ReadTimeoutError as error:
            if request.is_stream:  # a log's headers arrive with its first line
                raise StreamSilent(f"the API server sent nothing ({error})") from error
            raise Transient(str(error)) from error
        except HTTPError as error:
            self._check_configuration(error)
            raise Transient(str(error)) from error
        self._show_warnings(response)
        check_response(str(request), response.status, content, response.headers.get("Retry-After", ""))
        return response

    def _show_warnings(self, response: urllib3.BaseHTTPResponse) -> None:
        """Show each warning of the server once, such as that a field is deprecated."""
        for warning in WARNING.findall(", ".join(response.headers.getlist("Warning"))):
            if warning not in self._warnings_shown:
                self._warnings_shown.add(warning)
                log.warning("the API server warns: %s", warning.replace('\\"', '"'))

    def _check_configuration(self, error: HTTPError) -> None:
        """Raise if the configuration seems to cause the error."""
        text = str(error).lower()
        if "alert" in text and ("certificate" in text or "unknown ca" in text):  # the server's word about ours
            raise Unauthorized(
                f"{self._host} rejects our client certificate ({error}): log in to the cluster again"
            ) from error
        if "certificate" in text:
            raise Misconfigured(
                f"cannot verify the certificate of {self._host} ({error}): "
                "check the cluster's certificate-authority in KUBECONFIG"
            ) from error
        if isinstance(error, NameResolutionError | LocationValueError):
            raise Misconfigured(f"cannot resolve {self._host} ({error}): check the server in KUBECONFIG") from error


def _stop_if_late(began: float) -> None:
    """Let an interrupt end a creation for which a webhook hangs: the server drops it once its connection is closed."""
    if time.monotonic() - began > ANSWER_SECONDS:
        raise KeyboardInterrupt


def _pauses() -> Iterator[float]:
    """Yield growing pauses, with jitter."""
    longest = FIRST_PAUSE_SECONDS
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(2 * longest, MAX_PAUSE_SECONDS)
