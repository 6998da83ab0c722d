"""A real Prometheus with the rules of deploy/monitoring, a minute of which it takes for a second."""

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import yaml

from kubetrain_components.jobs.local.free_ports import free_port
from kubetrain_components.manifest import Manifest

MONITORING = Path(__file__).parents[2] / "deploy" / "monitoring"
AGE = re.compile(r"> \d+$", re.MULTILINE)
"""The threshold of a checkpoint's age, which is a number of seconds."""


def rule_groups() -> Manifest:
    groups: Manifest = yaml.safe_load((MONITORING / "rules.yaml").read_text())["spec"]
    return groups


def alert_rules() -> list[Manifest]:
    return [rule for group in rule_groups()["groups"] for rule in group["rules"]]


def dashboard_queries() -> list[str]:
    """Return the queries of the panels, for all namespaces and runs."""
    panels = json.loads((MONITORING / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    return [re.sub(r"\$\w+", ".*", query) for query in queries]


class Prometheus:
    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/v1/"

    def is_ready(self) -> bool:
        try:
            self.ask("status/buildinfo")
        except OSError:
            return False
        return True

    def query(self, query: str) -> list[Any]:
        found: list[Any] = self.ask(f"query?{urlencode({'query': query})}")["result"]
        return found

    def firing(self) -> set[str]:
        alerts = self.ask("alerts")["alerts"]
        return {each["labels"]["alertname"] for each in alerts if each["state"] == "firing"}

    def ask(self, path: str) -> Any:
        with build_opener(ProxyHandler({})).open(self._url + path, timeout=60) as response:
            return json.load(response)["data"]


@contextmanager
def prometheus(folder: Path, target_port: int) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes one training and evaluates the rules, each once per second."""
    port = free_port()
    _write_configuration(folder, target_port)
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            [
                "prometheus",
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            running = Prometheus(port)
            wait_until(running.is_ready)
            yield running
        finally:
            server.terminate()
            server.wait()


def _write_configuration(folder: Path, target_port: int) -> None:
    rules = yaml.safe_dump(rule_groups(), width=1000)
    rules = AGE.sub("> 20", re.sub(r"\b(\d+)m\b", r"\1s", rules)).replace("[1h]", "[60s]")
    (folder / "rules.yaml").write_text(rules)
    labels = {"namespace": "team", "run": "run-7"}
    targets = [{"targets": [f"127.0.0.1:{target_port}"], "labels": labels}]
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "kubetrain", "static_configs": targets}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))


def wait_until(is_true: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.2)
