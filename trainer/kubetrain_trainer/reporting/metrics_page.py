"""The training's metrics in Prometheus' text format, and the HTTP server for them."""

from __future__ import annotations

import logging
import os
import socket
import socketserver
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from itertools import chain
from typing import Any, Mapping

from kubetrain_trainer.reporting.step_window import StepWindow, quantile

GAUGES = {
    "step": "Steps taken.",
    "epoch": "Completed passes over the training data.",
    "loss": "Mean loss over the most recent steps and all processes.",
    "gradient_norm": "Mean norm of the gradient over the most recent steps, before clipping.",
    "learning_rate": "Learning rate of the most recent step.",
    "samples_per_second": "Samples per second of all processes together, over the most recent steps.",
    "samples_per_second_per_gpu": "The same for each GPU.",
    "mfu": "The model's operations as a fraction of the most that the GPUs can compute (model FLOPs utilization).",
    "data_wait_share": "Fraction of time that the slowest process waited for data, over the most recent steps.",
    "idle_share": "Mean fraction of time that processes (their GPUs if any) waited for data or each other, recently.",
    "straggler_delay_share": "How much longer than the median the slowest process took, as a fraction of a step.",
    "shards_fetched": "Shards that the cache of this pod has fetched.",
    "shard_waits": "How often a reader in this pod had to wait for a shard.",
    "gpu_memory_peak_bytes": "Peak GPU memory of this process.",
}
SKIPPED = "skipped_steps"
QUANTILES = (0.5, 0.9, 0.99)
Labels = Mapping[str, object]
METRICS_PATH = "/metrics"
HOST_VARIABLE = "KUBETRAIN_METRICS_HOST"
"""The environment variable with the IPv4 address to listen on; not set for all addresses of a pod."""
RETRY_SECONDS = 5.0
log = logging.getLogger(__name__)


class MetricsPage:
    """The page of metrics. Its parts are replaced, never modified in place, because the server's threads read them."""

    def __init__(self, run_id: str, world_size: int, restarts: int) -> None:
        self._constant = [
            *_metric("run_info", "gauge", "The run that this process belongs to.", {"run_id": run_id}, 1),
            *_metric("processes", "gauge", "Number of training processes.", {}, world_size),
            *_metric("restarts_total", "counter", "Number of times this run was restarted.", {}, restarts),
        ]
        self._newest: list[str] = [*_skipped(0)]
        self._logged: list[str] = []
        self._validation: list[str] = []
        self._time: list[str] = []
        self._stalls: tuple[float, int] = (0.0, 0)
        self._saved = time.monotonic()

    def show_steps(
        self, row: Mapping[str, Any], window: StepWindow | None = None, stragglers: Sequence[Mapping[str, Any]] = ()
    ) -> None:
        shown = [name for name in GAUGES if name in row]
        gauges = [line for name in shown for line in _metric(name, "gauge", GAUGES[name], {}, row[name])]
        counter = _skipped(row.get(SKIPPED, 0))
        self._newest = [*gauges, *counter, *_slow_processes(stragglers), *(_step_times(window) if window else ())]

    def show_logged(self, values: Mapping[str, float]) -> None:
        """Show what a script logs under names of its own."""
        own = {name: value for name, value in values.items() if name not in (*GAUGES, SKIPPED)}
        self._logged = [*_labeled("logged", "gauge", "Numbers that the script logged last.", "metric", own)]

    def show_checkpoint(self, metrics: Mapping[str, float], stall_seconds: float) -> None:
        self._saved = time.monotonic()
        self._stalls = (self._stalls[0] + stall_seconds, self._stalls[1] + 1)
        if metrics:
            meaning = "Metrics of the most recent evaluation on the validation split."
            self._validation = [*_labeled("validation", "gauge", meaning, "metric", metrics)]

    def show_time(self, seconds: Mapping[str, float]) -> None:
        meaning = "Time of the training by what it was spent on, over all starts."
        rounded = {cause: round(value, 3) for cause, value in seconds.items()}
        self._time = [*_labeled("time_seconds_total", "counter", meaning, "cause", rounded)]

    def text(self) -> str:
        parts = (self._constant, self._newest, self._logged, self._time, self._validation, self._checkpoints())
        return "\n".join([*chain.from_iterable(parts), ""])

    @property
    def checkpoint_age(self) -> float:
        return time.monotonic() - self._saved

    def _checkpoints(self) -> Iterator[str]:
        meaning = "Training time that a failure would lose: since the newest checkpoint, or since this process started."
        yield from _metric("checkpoint_age_seconds", "gauge", meaning, {}, self.checkpoint_age)
        seconds, count = self._stalls
        yield _head("checkpoint_stall_seconds", "summary", "Time that the training waited for a checkpoint.")
        yield _sample("checkpoint_stall_seconds_sum", {}, seconds)
        yield _sample("checkpoint_stall_seconds_count", {}, count)


def _skipped(steps: int) -> tuple[str, str]:
    """Return the counter, also before steps are reported, because Prometheus sees no increase in its first value."""
    return _metric(f"{SKIPPED}_total", "counter", "Steps skipped because of NaN or infinity.", {}, steps)


def _labeled(name: str, kind: str, meaning: str, label: str, values: Mapping[str, float]) -> Iterator[str]:
    if values:
        yield _head(name, kind, meaning)
    for text, value in values.items():
        yield _sample(name, {label: text}, value)


def _slow_processes(stragglers: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    if stragglers:
        yield _head("straggler", "gauge", "How much longer than the median a slow process takes: a fraction of a step.")
    for straggler in stragglers:
        labels = {name: straggler[name] for name in ("rank", "node", "part")}
        yield _sample("straggler", labels, straggler["delay_share"])


def _step_times(window: StepWindow) -> Iterator[str]:
    yield _head("step_seconds", "summary", "Time from one step to the next in this process.")
    ordered = sorted(window.step_seconds)
    for fraction in QUANTILES:
        yield _sample("step_seconds", {"quantile": fraction}, quantile(ordered, fraction))
    yield _sample("step_seconds_sum", {}, window.total_seconds)
    yield _sample("step_seconds_count", {}, window.total_steps)


def _metric(name: str, kind: str, meaning: str, labels: Labels, value: float) -> tuple[str, str]:
    return _head(name, kind, meaning), _sample(name, labels, value)


def _head(name: str, kind: str, meaning: str) -> str:
    return f"# HELP kubetrain_{name} {meaning}\n# TYPE kubetrain_{name} {kind}"


def _sample(name: str, labels: Labels, value: float) -> str:
    pairs = ",".join(f'{label}="{_escaped(str(text))}"' for label, text in labels.items())
    return f"kubetrain_{name}{{{pairs}}} {value}" if pairs else f"kubetrain_{name} {value}"


def _escaped(text: str) -> str:
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def serve_metrics(port: int, page: Callable[[], str]) -> Callable[[], None]:
    """Serve the page beside the training, until this process exits or calls the function that is returned.

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
        log.info("Prometheus metrics: port %d, %s", port, METRICS_PATH)
        while not must_stop.is_set():
            server.handle_request()


def _open_server(port: int, handler: type[BaseHTTPRequestHandler], must_stop: threading.Event) -> _Server | None:
    has_warned = False
    while not must_stop.is_set():
        try:
            return _Server(("", port), handler)
        except OSError as error:
            if not has_warned:
                log.warning(
                    "cannot serve metrics on port %d (%s), retrying: set train.metrics_port to a free one or to 0",
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
        if not isinstance(sys.exc_info()[1], OSError):  # clients that disconnect are not worth logging
            super().handle_error(request, client_address)


def _handler(page: Callable[[], str]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = 10  # close idle connections

        def do_GET(self) -> None:
            if self.path.partition("?")[0] != METRICS_PATH:
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
