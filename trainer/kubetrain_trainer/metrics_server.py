"""Serves a page of metrics beside the training: whatever happens to the page, the training goes on."""

import logging
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from typing import Any

PATH = "/metrics"
RETRY_SECONDS = 5.0
log = logging.getLogger(__name__)


def serve_metrics(port: int, page: Callable[[], str]) -> None:
    """Serve the page until this process ends; as soon as the port is free, where another process has it."""
    threading.Thread(target=_serve, args=(port, page), name="metrics", daemon=True).start()


def _serve(port: int, page: Callable[[], str]) -> None:
    with _open_server(port, _handler(page)) as server:
        log.info("Prometheus metrics: port %d, %s", port, PATH)
        server.serve_forever()


def _open_server(port: int, handler: type[BaseHTTPRequestHandler]) -> "_Server":
    has_complained = False
    while True:
        try:
            return _Server(("", port), handler)
        except OSError as error:
            if not has_complained:
                log.warning(
                    "Prometheus metrics: none while port %d cannot be had (%s): set metrics_port to another, or to 0",
                    port,
                    error.strerror,
                )
            has_complained = True
            time.sleep(RETRY_SECONDS)


class _Server(socketserver.ThreadingTCPServer):
    """Not http.server's own: that one asks the name service for its host's name first, which may take long."""

    daemon_threads = True
    allow_reuse_address = True
    address_family = socket.AF_INET6 if socket.has_dualstack_ipv6() else socket.AF_INET

    def server_bind(self) -> None:
        if self.address_family == socket.AF_INET6:
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)  # pods may have addresses of one kind
        super().server_bind()

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # a client that hangs up is none of the log's business
            super().handle_error(request, client_address)


def _handler(page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # a connection that asks nothing must not stay

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
            """Nothing: a scrape every few seconds would bury the log."""

    return Handler
