"""Connections to an origin: directly, or through a proxy."""

import contextlib
import socket
import ssl
import struct
from typing import cast

from urllib3.util.ssltransport import SSLTransport

from kubetrain_components.object_store.s3.http_head import HEAD_BYTES, ConnectionFailed, receive_head
from kubetrain_components.object_store.s3.origin import Origin, Proxy

CONNECT_TIMEOUT_SECONDS = 10.0
READ_TIMEOUT_SECONDS = 30.0


def connect(origin: Origin) -> socket.socket:
    """
    Raises:
        OSError: if the server or the proxy cannot be reached.
        ConnectionFailed: if the proxy refuses.
    """
    proxy = origin.proxy
    address = (proxy.host, proxy.port) if proxy else (origin.host, origin.port)
    with contextlib.ExitStack() as on_failure:
        plain = on_failure.enter_context(socket.create_connection(address, CONNECT_TIMEOUT_SECONDS))
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        is_encrypted = origin.tls is not None or (proxy is not None and proxy.tls is not None)
        _set_timeouts(plain, is_encrypted=is_encrypted)
        connected = _through_proxy(plain, origin, proxy) if proxy else _encrypted(plain, origin.tls, origin.host)
        on_failure.pop_all()
    return connected


def is_reusable(connected: socket.socket) -> bool:
    """Return True if the connection is open, and nothing arrived after the last response."""
    if not isinstance(connected, ssl.SSLSocket):
        return type(connected) is not socket.socket or _is_quiet(connected)
    connected.settimeout(0)
    try:
        connected.recv(1)
    except ssl.SSLWantReadError:
        return True
    except OSError:
        return False
    finally:
        connected.settimeout(READ_TIMEOUT_SECONDS)
    return False


def _is_quiet(connected: socket.socket) -> bool:
    try:
        connected.recv(1, socket.MSG_DONTWAIT)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _through_proxy(plain: socket.socket, origin: Origin, proxy: Proxy) -> socket.socket:
    connected = _encrypted(plain, proxy.tls, proxy.host)
    if origin.tls is None:
        return connected
    _open_tunnel(connected, origin, proxy)
    if proxy.tls is None:
        return _encrypted(connected, origin.tls, origin.host)
    # TLS within TLS, which Python's sockets cannot do; this has the same methods.
    return cast(socket.socket, SSLTransport(connected, origin.tls, origin.host))


def _encrypted(plain: socket.socket, tls: ssl.SSLContext | None, host: str) -> socket.socket:
    return tls.wrap_socket(plain, server_hostname=host) if tls else plain


def _open_tunnel(connected: socket.socket, origin: Origin, proxy: Proxy) -> None:
    target = f"{origin.host_in_url}:{origin.port}"
    lines = [f"CONNECT {target} HTTP/1.1", f"Host: {target}"]
    lines += [f"Proxy-Authorization: {proxy.authorization}"] if proxy.authorization else []
    connected.sendall(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))
    head, _ = receive_head(connected, bytearray(HEAD_BYTES))
    status = head.split("\r\n", 1)[0]
    if " 200" not in status:
        raise ConnectionFailed(f"the proxy {proxy.host} refused to connect: {status}")


def _set_timeouts(connected: socket.socket, *, is_encrypted: bool) -> None:
    if is_encrypted:
        connected.settimeout(READ_TIMEOUT_SECONDS)
        return
    # The kernel's timeout, because Python implements its own by polling the socket before each call.
    connected.settimeout(None)
    limit = struct.pack("ll", int(READ_TIMEOUT_SECONDS), int(READ_TIMEOUT_SECONDS % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connected.setsockopt(socket.SOL_SOCKET, option, limit)
