"""HTTP connections to one API server: verified, through its proxy, with the user's current credential."""

import contextlib
import os
import queue
import resource
import socket
import ssl
import tempfile
import threading
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote, urlsplit

import urllib3
from urllib3.connection import HTTPConnection
from urllib3.util import make_headers

from kubetrain_components import urls
from kubetrain_components.jobs.kubernetes.access.connection import AccessError, Connection
from kubetrain_components.jobs.kubernetes.access.credentials import Credential, Credentials
from kubetrain_components.no_proxy import environment_proxy
from kubetrain_trainer.errors import InvalidSetting

SOURCE = "proxy-url of the kubeconfig, else HTTPS_PROXY or HTTP_PROXY"

MAX_CONNECTIONS = 1024
MAX_DESCRIPTORS = 65_536
# Detects within a minute that a peer is gone, even if there is nothing to send.
KEEP_ALIVE = [
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10),
    (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
    # Not every system has this option.
    *([(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)] if hasattr(socket, "TCP_KEEPIDLE") else []),
]


@dataclass(frozen=True)
class Identity:
    """What a TLS connection is made with: when it changes, so do the connections."""

    ca: bytes
    certificate: bytes
    key: bytes


class Transport:
    """Connections for requests, and others for streams, from any number of threads."""

    def __init__(self, connection: Connection) -> None:
        self.credentials = Credentials(connection.user)
        self._connection = connection
        self._proxy = proxy_for(connection.server, connection.proxy_url)
        self._lock = threading.Lock()
        self._identity: Identity | None = None
        self._pools: dict[bool, urllib3.PoolManager] = {}
        if not connection.is_verified:
            urllib3.disable_warnings(urllib3.exceptions.InsecureRequestWarning)

    def request(
        self, credential: Credential, method: str, url: str, headers: dict[str, str], *, is_stream: bool, **options: Any
    ) -> urllib3.BaseHTTPResponse:
        """Send a request, without following redirects: credentials go to this server only."""
        known = urllib3.HTTPHeaderDict(headers)
        if credential.authorization:
            known["Authorization"] = credential.authorization
        for name, value in self._connection.user.impersonation:
            known.add(name, value)
        return self._pool(credential, is_stream).request(
            method, url, headers=known, retries=False, redirect=False, preload_content=not is_stream, **options
        )

    def _pool(self, credential: Credential, is_stream: bool) -> urllib3.PoolManager:
        ca = self._connection.ca.read() if self._connection.ca else b""
        identity = Identity(ca, credential.certificate, credential.key)
        with self._lock:
            if identity != self._identity:  # streams continue on their old connections
                context = self._tls(identity)
                self._pools = {kind: self._new_pool(context) for kind in (False, True)}
                self._identity = identity
            return self._pools[is_stream]

    def _new_pool(self, context: ssl.SSLContext) -> urllib3.PoolManager:
        pool = self._pool_manager(context)
        pool.pool_classes_by_scheme = POOLS
        return pool

    def _pool_manager(self, context: ssl.SSLContext) -> urllib3.PoolManager:
        options: dict[str, Any] = {
            "maxsize": MAX_CONNECTIONS,
            "socket_options": HTTPConnection.default_socket_options + KEEP_ALIVE,
            "ssl_context": context,
        }
        if self._connection.tls_server_name:
            options["server_hostname"] = self._connection.tls_server_name
        if not self._proxy:
            return urllib3.PoolManager(**options)
        url = urlsplit(self._proxy)
        account = f"{unquote(url.username)}:{unquote(url.password or '')}" if url.username else None
        return urllib3.ProxyManager(self._proxy, proxy_headers=make_headers(proxy_basic_auth=account), **options)

    def _tls(self, identity: Identity) -> ssl.SSLContext:
        with _checked("CA certificate"):
            context = ssl.create_default_context(cadata=identity.ca.decode() or None)
        # Python 3.13 became strict about extensions that the certificates of many clusters lack.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not self._connection.is_verified:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        if identity.certificate:
            with _checked("client certificate"), _files(identity.certificate, identity.key) as (certificate, key):
                # Without a password, it would ask for one on the terminal.
                context.load_cert_chain(certificate, key, password=lambda: b"-")
        return context


@contextlib.contextmanager
def _checked(what: str) -> Iterator[None]:
    try:
        yield
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or "not PEM"
        raise AccessError(f"the {what} of the kubeconfig is not valid ({reason}): log in again") from None


@contextlib.contextmanager
def _files(*contents: bytes) -> Iterator[list[str]]:
    """Write contents to files that only we can read, because ssl loads certificates only from files."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [os.path.join(folder, str(number)) for number in range(len(contents))]  # noqa: PTH118
        for path, content in zip(paths, contents, strict=True):
            with open(path, "wb") as file:  # noqa: PTH123
                file.write(content)
        yield paths


def raise_descriptor_limit() -> None:
    """Allow as many open files as the system grants without asking, as Go programs do: each followed pod needs one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MAX_DESCRIPTORS if hard == resource.RLIM_INFINITY else min(hard, MAX_DESCRIPTORS)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def proxy_for(server: str, proxy_url: str, environment: Mapping[str, str] = os.environ) -> str:
    """Return the URL of the proxy, read as Go and so kubectl does; empty if there is none.

    Args:
        proxy_url: The kubeconfig's, which wins over the environment.

    Raises:
        AccessError: if the proxy is of an unsupported kind, or no URL.
    """
    try:
        return urls.proxy_url(proxy_url or environment_proxy(server, environment), SOURCE)
    except InvalidSetting as error:
        raise AccessError(str(error)) from error


class IdleConnections:
    """A last-in-first-out queue that an interrupt cannot leave locked: it lacks the locks of Python's own."""

    def __init__(self, maxsize: int) -> None:
        self._maxsize = maxsize
        self._connections: deque[Any] = deque()

    def get(self, block: bool = False, timeout: float | None = None) -> Any:
        try:
            return self._connections.pop()
        except IndexError:
            raise queue.Empty from None

    def put(self, connection: Any, block: bool = False, timeout: float | None = None) -> None:
        if len(self._connections) >= self._maxsize:
            raise queue.Full
        self._connections.append(connection)

    def qsize(self) -> int:
        return len(self._connections)


class _HttpPool(urllib3.HTTPConnectionPool):
    QueueCls = IdleConnections  # type: ignore[assignment]


class _HttpsPool(urllib3.HTTPSConnectionPool):
    QueueCls = IdleConnections  # type: ignore[assignment]


POOLS = {"http": _HttpPool, "https": _HttpsPool}
"""Classes of the pools, by the scheme of their URLs."""
