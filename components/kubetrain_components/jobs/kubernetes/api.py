"""Requests to one Kubernetes API server: JSON in and out, and what is transient is tried again.

The `kubernetes` library finds the cluster and proves who we are. Requests go straight through its pools: its watch
drops blank lines, and its errors do not work with the urllib3 of today.
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
    check_answer,
)
from kubetrain_components.manifest import Manifest

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
PATIENCE_SECONDS = 300.0
CONNECT_SECONDS = 10.0
ANSWER_SECONDS = 30.0
FIRST_PAUSE_SECONDS = 0.2
MAX_PAUSE_SECONDS = 10.0
DOUBT_SECONDS = 20.0
CHUNK_BYTES = 64 << 10
MAX_CONNECTIONS = 1024
# A peer that is gone without a word is noticed within a minute, also where there is nothing to send.
KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    # Not every system lets itself be told when to begin.
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
    """An answer that is read while it is sent."""

    def __init__(self, answer: urllib3.BaseHTTPResponse) -> None:
        self._answer = answer
        self._is_stopped = False

    def __iter__(self) -> Iterator[bytes]:
        try:
            for chunk in self._answer.stream(CHUNK_BYTES, decode_content=False):
                if self._is_stopped:  # with its socket shut down, TLS passes on what it did not decipher
                    raise StreamCut("the answer is not wanted any more")
                yield chunk
        except ReadTimeoutError as error:
            raise StreamSilent(f"nothing came from the API server any more ({error})") from error
        except (HTTPError, OSError) as error:
            raise StreamCut(f"the API server's answer was cut short ({error})") from error

    def stop(self) -> None:
        """End it, from whichever thread; its reader sees it cut."""
        self._is_stopped = True
        with contextlib.suppress(Exception):  # it has ended already
            self._answer.shutdown()


class KubernetesApi:
    """Requests to one API server, in one namespace, from any number of threads.

    Streams have connections of their own. The one for all else stays open between requests: a launcher that is told to
    stop has a second left to delete its job.
    """

    def __init__(self, configuration: Any, namespace: str, patience_seconds: float = PATIENCE_SECONDS) -> None:
        from kubernetes import client
        from kubernetes.client.rest import RESTClientObject

        configuration.connection_pool_maxsize = MAX_CONNECTIONS
        self.namespace = namespace
        self.patience_seconds = patience_seconds
        self._host = configuration.host.rstrip("/")
        self._account = client.ApiClient(configuration)
        self._plain = self._account.rest_client.pool_manager
        self._streaming = RESTClientObject(configuration).pool_manager
        for pool in (self._plain, self._streaming):
            pool.connection_pool_kw["socket_options"] = HTTPConnection.default_socket_options + KEEP_ALIVE
        self._lock = threading.Lock()
        self._has_answered = False
        self._trouble_seen = -DOUBT_SECONDS

    @classmethod
    def connect(cls, namespace: str = "", patience_seconds: float = PATIENCE_SECONDS) -> Self:
        """To the cluster that KUBECONFIG names, else the pod's own, else the user's usual one.

        Where no namespace is given, that configuration's own counts.
        """
        from kubernetes import client, config

        configuration = client.Configuration()
        named = os.environ.get("KUBECONFIG")  # the library has read it at its import, once and for all
        try:
            if not named and (SERVICE_ACCOUNT / "token").exists():
                config.load_incluster_config(configuration)
                usual = (SERVICE_ACCOUNT / "namespace").read_text().strip()
            else:
                config.load_kube_config(named, client_configuration=configuration)
                usual = config.list_kube_config_contexts(named)[1]["context"].get("namespace")
        except (config.ConfigException, OSError) as error:
            raise KubernetesError(
                f"no cluster is configured ({error}): name one by KUBECONFIG, or run in a pod of it"
            ) from error
        return cls(configuration, namespace or usual or "default", patience_seconds)

    def path(self, group_version: str, plural: str, name: str = "") -> str:
        """Of the objects of a kind in our namespace, or of one of them."""
        root = "/api/v1" if group_version == "v1" else f"/apis/{group_version}"
        return f"{root}/namespaces/{self.namespace}/{plural}" + (f"/{name}" if name else "")

    def get(self, path: str, **query: Any) -> Manifest | None:
        with contextlib.suppress(NotFound):
            return self._json(Request("GET", self._host + path, query))
        return None

    def create(self, path: str, body: Manifest, **query: Any) -> Manifest:
        """The object that was made.

        Raises:
            Conflict: where the name is taken; perhaps by this very object, where the answer to it was lost.
        """
        return self._json(Request("POST", self._host + path, query, body))

    def patch(self, path: str, body: Manifest) -> Manifest | None:
        """Merge this into the object; None where there is none."""
        with contextlib.suppress(NotFound):
            return self._json(Request("PATCH", self._host + path, {}, body))
        return None

    def delete(self, path: str, *, uid: str = "", resource_version: str = "", propagation: str = "Background") -> bool:
        """Whether the object was there; with a uid: whether it was this one; with a version: as it was seen."""
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
        self, path: str, *, read_timeout: float, patience_seconds: float | None = None, **query: Any
    ) -> Iterator[Stream]:
        """An answer that is read while it is sent.

        Raises:
            StreamCut: also from reading it; a StreamSilent where nothing comes for read_timeout seconds.
        """
        patience = self.patience_seconds if patience_seconds is None else patience_seconds
        request = Request("GET", self._host + path, query, read_timeout=read_timeout)
        answer = self._send(self._streaming, request, patience)
        try:
            yield Stream(answer)
        finally:
            answer.close()

    def _json(self, request: Request) -> Manifest:
        answer = self._send(self._plain, request, self.patience_seconds)
        try:
            return dict(json.loads(answer.data))
        except ValueError as error:
            raise KubernetesError(
                f"what answers at {self._host} is no Kubernetes API server: check KUBECONFIG"
            ) from error

    def _send(self, pool: urllib3.PoolManager, request: Request, patience: float) -> urllib3.BaseHTTPResponse:
        """The answer, asked for again until there is one or the patience ends."""
        deadline = time.monotonic() + patience
        for pause in _pauses():
            try:
                answer = self._exchange(pool, request)
                check_answer(str(request), answer.status, _refusal_in(answer), answer.headers.get("Retry-After", ""))
            except Transient as trouble:
                self._trouble_seen = time.monotonic()
                self._wait(max(pause, trouble.retry_after), deadline, request, trouble)
            except (Unauthorized, Forbidden, UnknownKind) as refusal:
                # A server that has just started knows no rules and few kinds yet.
                if time.monotonic() - self._trouble_seen > DOUBT_SECONDS:
                    raise
                self._wait(pause, deadline, request, refusal)
            else:
                self._has_answered = True
                return answer
        raise AssertionError("pauses never end")

    def _exchange(self, pool: urllib3.PoolManager, request: Request) -> urllib3.BaseHTTPResponse:
        headers = dict(request.headers)
        with self._lock:  # it may renew the token
            self._account.update_params_for_auth(headers, [], ["BearerToken"])
        try:
            return pool.request(
                request.method,
                request.url,
                headers=headers,
                body=request.content,
                timeout=urllib3.Timeout(connect=CONNECT_SECONDS, read=request.read_timeout or ANSWER_SECONDS),
                retries=False,
                redirect=False,
                preload_content=pool is self._plain,
            )
        except ReadTimeoutError as error:
            if pool is self._streaming:  # the head of a log comes with its first line
                raise StreamSilent(f"nothing came from the API server ({error})") from error
            raise Transient(str(error)) from error
        except HTTPError as error:
            self._check_is_configured(error)
            raise Transient(str(error)) from error

    def _check_is_configured(self, error: HTTPError) -> None:
        """Pass what time may heal."""
        if "CERTIFICATE_VERIFY_FAILED" in str(error) or "certificate" in str(error).lower():
            raise KubernetesError(
                f"the certificate of {self._host} is not the one that is configured ({error}): "
                "check the cluster's certificate-authority in KUBECONFIG"
            ) from error
        if isinstance(error, NameResolutionError | LocationValueError) and not self._has_answered:
            raise KubernetesError(f"{self._host} has no address ({error}): check the server in KUBECONFIG") from error

    def _wait(self, seconds: float, deadline: float, request: Request, trouble: Exception) -> None:
        if time.monotonic() + seconds > deadline:
            raise Unreachable(
                f"the API server {self._host} could not answer {request} in all the time it was given ({trouble}): "
                "check that it runs, and start again"
            ) from trouble
        log.info("%s: %s; tried again in %.1f s", request, trouble, seconds)
        time.sleep(seconds)


def _refusal_in(answer: urllib3.BaseHTTPResponse) -> bytes:
    if answer.status < 400:
        return b""
    try:
        return answer.data
    except HTTPError as error:
        raise Transient(str(error)) from error


def _pauses() -> Iterator[float]:
    """Ever longer, and not at the same time for everybody."""
    longest = FIRST_PAUSE_SECONDS
    while True:
        yield random.uniform(longest / 2, longest)
        longest = min(2 * longest, MAX_PAUSE_SECONDS)
