"""A real MLflow server with its own packages, and servers that refuse, redirect or never answer."""

import json
import os
import ssl
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import ProxyHandler, Request, build_opener

import pytest

from kubetrain_components.jobs.local.loopback import free_ports

PYTHON = Path(__file__).parents[2] / ".venv-mlflow" / "bin" / "python"
START_SECONDS = 120


class MlflowServer:
    """A server on a port of this machine, which can be killed and started again with its data."""

    def __init__(self, folder: Path) -> None:
        if not PYTHON.exists():
            pytest.skip("MLflow's server is missing: make .venv-mlflow/installed")
        self._folder = folder
        self._port = free_ports(1)[0]
        self._process: subprocess.Popen[bytes] | None = None
        self.address = f"http://127.0.0.1:{self._port}"

    def start(self) -> None:
        environment = {
            **os.environ,
            "MLFLOW_DISABLE_TELEMETRY": "true",
            # What `mlflow server` sets for its web server.
            "_MLFLOW_SERVER_FILE_STORE": f"sqlite:///{self._folder / 'mlflow.db'}",
            "_MLFLOW_SERVER_ARTIFACT_ROOT": str(self._folder / "artifacts"),
        }
        command = [str(PYTHON), "-m", "flask", "--app", "mlflow.server:app", "run", "--port", str(self._port)]
        with (self._folder / "mlflow.log").open("ab") as log:
            self._process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        end = time.monotonic() + START_SECONDS
        while not self._answers():
            assert time.monotonic() < end, (self._folder / "mlflow.log").read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()

    def create_run(self) -> str:
        run = self._ask("runs/create", {"experiment_id": "0", "run_name": "a step"})
        return str(run["run"]["info"]["run_id"])

    def runs(self, experiment: str = "kubetrain") -> list[dict[str, Any]]:
        """Return the runs of an experiment."""
        found = self._ask(f"experiments/get-by-name?{urlencode({'experiment_name': experiment})}")
        listed = self._ask("runs/search", {"experiment_ids": [found["experiment"]["experiment_id"]]})
        return list(listed.get("runs", []))

    def run(self, run_id: str) -> dict[str, Any]:
        run: dict[str, Any] = self._ask(f"runs/get?{urlencode({'run_id': run_id})}")["run"]
        return run

    def curve(self, run_id: str, name: str) -> list[tuple[int, float]]:
        """Return the steps and values of a metric in the order in which they were logged."""
        query = urlencode({"run_id": run_id, "metric_key": name, "max_results": 10_000})
        found = self._ask(f"metrics/get-history?{query}").get("metrics", [])
        return [(int(each["step"]), each["value"]) for each in found]

    def delete(self, run_id: str) -> None:
        self._ask("runs/delete", {"run_id": run_id})

    def _answers(self) -> bool:
        try:
            self._ask("experiments/search?max_results=1")
        except OSError:
            return False
        return True

    def _ask(self, path: str, values: dict[str, Any] | None = None) -> dict[str, Any]:
        body = None if values is None else json.dumps(values).encode()
        url = f"{self.address}/api/2.0/mlflow/{path}"
        request = Request(url, data=body, headers={"Content-Type": "application/json"})
        with build_opener(ProxyHandler({})).open(request, timeout=60) as response:
            answer: dict[str, Any] = json.load(response)
        return answer


def parameters_of(run: dict[str, Any]) -> dict[str, str]:
    return {each["key"]: each["value"] for each in run["data"].get("params", [])}


@dataclass
class Strange:
    """A server that answers every request alike."""

    address: str
    headers: list[dict[str, str]] = field(default_factory=list)
    """The headers of each request."""


@contextmanager
def strange_server(
    status: int,
    body: str = "",
    *,
    content_type: str = "",
    location: str = "",
    hangs: bool = False,
    tls: ssl.SSLContext | None = None,
) -> Iterator[Strange]:
    is_over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            served.headers.append(dict(self.headers))
            if hangs:
                is_over.wait()
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(status)
            for name, value in (("Content-Type", content_type), ("Location", location)):
                if value:
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_POST = answer  # noqa: N815 - the names that the library calls

        def log_message(self, *unused: Any) -> None:
            """Log nothing."""

    with _serving(Handler, tls) as address:
        served = Strange(address)
        try:
            yield served
        finally:
            is_over.set()


@contextmanager
def losing_answers(server: MlflowServer, path: str, word: bytes = b"") -> Iterator[str]:
    """Forward requests to the server, but lose the answer to the first to a path with a word. Yield the address."""
    lost: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def forward(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            url, headers = server.address + self.path, {"Content-Type": "application/json"}
            request = Request(url, data=body or None, headers=headers, method=self.command)
            try:
                with build_opener(ProxyHandler({})).open(request, timeout=60) as response:
                    status, answer = response.status, response.read()
            except HTTPError as refusal:
                status, answer = refusal.code, refusal.read()
            if self.path.endswith(path) and word in body and not lost:
                lost.append(self.path)
                return
            self.send_response(status)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        do_GET = do_POST = forward  # noqa: N815 - the names that the library calls

        def log_message(self, *unused: Any) -> None:
            """Log nothing."""

    with _serving(Handler) as address:
        yield address
    assert lost


@contextmanager
def _serving(handler: type[BaseHTTPRequestHandler], tls: ssl.SSLContext | None = None) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"{'https' if tls else 'http'}://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()
