"""An HTTP server for metrics that runs beside the training and never interrupts it."""

import logging
import os
import socket
import socketserver
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

PATH = "/metrics"
HOST_VARIABLE = "KUBETRAIN_METRICS_HOST"
"""The environment variable with the IPv4 address to listen on; not set for all addresses of a pod."""
RETRY_SECONDS = 5.0
log = logging.getLogger(__name__)


def serve_metrics(port: int, page: Callable[[], str]) -> Callable[[], None]:
    """Serve the page until this process exits or calls the function that is returned.

    If the port is in use, retry until it is free.
    """
    must_stop = threading.Event()
    thread = threading.Thread(target=_serve, args=(port, page, must_stop), name="metrics", daemon=True)
    thread.start()

    def stop() -> None:
        must_stop.set()
        thread.join()

    return stop


def _serve(port: int, page: Callable[[], str], must_stop: threading.Event) -> None:
    if (server := _open_server(port, _handler(page), must_stop)) is None:
        return
    with server:
        log.info("Prometheus metrics: port %d, %s", port, PATH)
        while not must_stop.is_set():
            server.handle_request()


def _open_server(port: int, handler: type[BaseHTTPRequestHandler], must_stop: threading.Event) -> "_Server | None":
    has_warned = False
    while not must_stop.is_set():
        try:
            return _Server(("", port), handler)
        except OSError as error:
            if not has_warned:
                log.warning(
                    "cannot serve metrics on port %d (%s), retrying: set metrics_port to a free one or to 0",
                    port,
                    error.strerror,
                )
            has_warned = True
            must_stop.wait(RETRY_SECONDS)
    return None


class _Server(socketserver.ThreadingTCPServer):
    """Used instead of http.server.HTTPServer, whose DNS lookup of the host's name at the start may take long."""

    timeout = 0.2  # how long a request to stop may wait
    daemon_threads = True
    allow_reuse_address = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        host = os.environ.get(HOST_VARIABLE, "")
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # accept IPv4 as well
            host = host and f"::ffff:{host}"
        self.server_address = (host, self.server_address[1])
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # clients that disconnect are not worth logging
            super().handle_error(request, client_address)


def _handler(page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # close idle connections

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != PATH:
                self.send_error(404)
                return
            body = page().encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *unused: Any) -> None:
            """Log nothing: scrapes every few seconds would fill the log."""

    return Handler
