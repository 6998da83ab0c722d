"""Requests to one Kubernetes API server: JSON in and out, with retries of transient errors.

The `kubernetes` library finds the cluster and authenticates us. Requests go straight through its connection pools,
because its watch drops blank lines and its errors do not work with current urllib3.
"""

import contextlib
import json
import logging
import os
import random
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlencode, urlsplit

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.exceptions import HTTPError, LocationValueError, NameResolutionError, ReadTimeoutError

from kubetrain_components.jobs.kubernetes.errors import (
    Conflict,
    Forbidden,
    KubernetesError,
    NotFound,
    StreamCut,
    StreamSilent,
    Transient,
    Unauthorized,
    UnknownKind,
    Unreachable,
    check_response,
)
from kubetrain_components.manifest import Manifest

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
RETRY_SECONDS = 300.0
CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0
STARTUP_SECONDS = 20.0
CHUNK_BYTES = 64 << 10
MAX_CONNECTIONS = 1024
# Detects within a minute that a peer is gone, even if there is nothing to send.
KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    # Not every system has this option.
    *([(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)] if hasattr(socket, "TCP_KEEPIDLE") else []),
]

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    method: str
    address: str
    query: Mapping[str, Any]
    body: Manifest | None = None
    read_timeout: float | None = None

    def __str__(self) -> str:
        return f"{self.method} {urlsplit(self.address).path}"

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
    """A response that is read while it arrives."""

    def __init__(self, response: urllib3.BaseHTTPResponse) -> None:
        self._response = response
        self._is_stopped = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._response.stream(CHUNK_BYTES, decode_content=False):
                if self._is_stopped:  # once its socket is shut down, TLS returns undeciphered data
                    raise StreamCut("the stream was stopped")
                yield chunk
        except ReadTimeoutError as error:
            raise StreamSilent(f"the API server sent nothing more ({error})") from error
        except (HTTPError, OSError) as error:
            raise StreamCut(f"the API server's response was cut short ({error})") from error

    def stop(self) -> None:
        """Stop the stream, from any thread; its reader gets a StreamCut."""
        self._is_stopped = True
        with contextlib.suppress(Exception):  # it has ended already
            self._response.shutdown()


class KubernetesApi:
    """Requests to one API server, in one namespace, from any number of threads.

    Streams have their own connections. The one for all other requests stays open between them: a launcher that is told
    to stop has only a second left to delete its job.
    """

    def __init__(self, configuration: Any, namespace: str, retry_seconds: float = RETRY_SECONDS) -> None:
        from kubernetes import client
        from kubernetes.client.rest import RESTClientObject

        configuration.connection_pool_maxsize = MAX_CONNECTIONS
        self.namespace = namespace
        self.retry_seconds = retry_seconds
        self._host = configuration.host.rstrip("/")
        self._client = client.ApiClient(configuration)
        self._pool = self._client.rest_client.pool_manager
        self._stream_pool = RESTClientObject(configuration).pool_manager
        for pool in (self._pool, self._stream_pool):
            pool.connection_pool_kw["socket_options"] = HTTPConnection.default_socket_options + KEEP_ALIVE
        self._lock = threading.Lock()
        self._has_answered = False
        self._last_trouble = -STARTUP_SECONDS

    @classmethod
    def connect(cls, namespace: str = "", retry_seconds: float = RETRY_SECONDS) -> Self:
        """Connect to the cluster of $KUBECONFIG, else to this pod's cluster, else to that of the default kubeconfig.

        The namespace defaults to the one of that configuration.
        """
        from kubernetes import client, config

        configuration = client.Configuration()
        kubeconfig = os.environ.get("KUBECONFIG")  # the library reads it only once, at its import
        try:
            if not kubeconfig and (SERVICE_ACCOUNT / "token").exists():
                config.load_incluster_config(configuration)
                default = (SERVICE_ACCOUNT / "namespace").read_text().strip()
            else:
                config.load_kube_config(kubeconfig, client_configuration=configuration)
                default = config.list_kube_config_contexts(kubeconfig)[1]["context"].get("namespace")
        except (config.ConfigException, OSError) as error:
            raise KubernetesError(
                f"no cluster is configured ({error}): set KUBECONFIG, or run in a pod of the cluster"
            ) from error
        return cls(configuration, namespace or default or "default", retry_seconds)

    def path(self, group_version: str, plural: str, name: str = "") -> str:
        """Return the path of a kind of object in our namespace, or of one object."""
        root = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def get(self, path: str, **query: Any) -> Manifest | None:
        with contextlib.suppress(NotFound):
            return self._json(Request("GET", self._host + path, query))
        return None

    def create(self, path: str, body: Manifest, **query: Any) -> Manifest:
        """Return the created object.

        Raises:
            Conflict: if the name is taken; perhaps by this very object, if an earlier response was lost.
        """
        return self._json(Request("POST", self._host + path, query, body))

    def patch(self, path: str, body: Manifest) -> Manifest | None:
        """Merge body into the object and return it; None if it does not exist."""
        with contextlib.suppress(NotFound):
            return self._json(Request("PATCH", self._host + path, {}, body))
        return None

    def delete(self, path: str, *, uid: str = "", resource_version: str = "", propagation: str = "Background") -> bool:
        """Delete the object and return True; False if it is gone or has another uid or resource_version."""
        options: Manifest = {"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": propagation}
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options["preconditions"] = {name: value for name, value in conditions.items() if value}
        try:
            self._json(Request("DELETE", self._host + path, {}, options))
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
        request = Request("GET", self._host + path, query, read_timeout=read_timeout)
        retry_seconds = self.retry_seconds if retry_seconds is None else retry_seconds
        response = self._send(self._stream_pool, request, retry_seconds)
        try:
            yield Stream(response)
        finally:
            response.close()

    def _json(self, request: Request) -> Manifest:
        response = self._send(self._pool, request, self.retry_seconds)
        try:
            return dict(json.loads(response.data))
        except ValueError as error:
            raise KubernetesError(f"{self._host} is not a Kubernetes API server: check KUBECONFIG") from error

    def _send(self, pool: urllib3.PoolManager, request: Request, retry_seconds: float) -> urllib3.BaseHTTPResponse:
        """Send the request, and retry it until it succeeds or time is up."""
        deadline = time.monotonic() + retry_seconds
        for pause in _pauses():
            try:
                response = self._exchange(pool, request)
                retry_after = response.headers.get("Retry-After", "")
                check_response(str(request), response.status, _error_body(response), retry_after)
            except Transient as error:
                self._last_trouble = time.monotonic()
                self._wait(max(pause, error.retry_after), deadline, request, error)
            except (Unauthorized, Forbidden, UnknownKind) as error:
                # A server that has just started does not know all accounts, roles and kinds yet.
                if time.monotonic() - self._last_trouble > STARTUP_SECONDS:
                    raise
                self._wait(pause, deadline, request, error)
            else:
                self._has_answered = True
                return response
        raise AssertionError("pauses never end")

    def _exchange(self, pool: urllib3.PoolManager, request: Request) -> urllib3.BaseHTTPResponse:
        headers = dict(request.headers)
        with self._lock:  # may renew the token
            self._client.update_params_for_auth(headers, [], ["BearerToken"])
        try:
            return pool.request(
                request.method,
                request.url,
                headers=headers,
                body=request.content,
                timeout=urllib3.Timeout(
                    connect=CONNECT_TIMEOUT_SECONDS, read=request.read_timeout or READ_TIMEOUT_SECONDS
                ),
                retries=False,
                redirect=False,
                preload_content=pool is self._pool,
            )
        except ReadTimeoutError as error:
            if pool is self._stream_pool:  # a log's headers arrive with its first line
                raise StreamSilent(f"the API server sent nothing ({error})") from error
            raise Transient(str(error)) from error
        except HTTPError as error:
            self._check_configuration(error)
            raise Transient(str(error)) from error

    def _check_configuration(self, error: HTTPError) -> None:
        """Raise if the configuration causes the error: then no retry helps."""
        if "certificate" in str(error).lower():
            raise KubernetesError(
                f"cannot verify the certificate of {self._host} ({error}): "
                "check the cluster's certificate-authority in KUBECONFIG"
            ) from error
        if isinstance(error, NameResolutionError | LocationValueError) and not self._has_answered:
            raise KubernetesError(f"cannot resolve {self._host} ({error}): check the server in KUBECONFIG") from error

    def _wait(self, seconds: float, deadline: float, request: Request, error: Exception) -> None:
        if time.monotonic() + seconds > deadline:
            raise Unreachable(
                f"the API server {self._host} could not answer {request} before the timeout ({error}): "
                "check that it is running, then start again"
            ) from error
        log.info("%s: %s; retrying in %.1f s", request, error, seconds)
        time.sleep(seconds)


def _error_body(response: urllib3.BaseHTTPResponse) -> bytes:
    if response.status < 400:
        return b""
    try:
        return response.data
    except HTTPError as error:
        raise Transient(str(error)) from error


def _pauses() -> Iterator[float]:
    """Yield growing pauses, with jitter."""
    longest = FIRST_PAUSE_SECONDS
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(2 * longest, MAX_PAUSE_SECONDS)
