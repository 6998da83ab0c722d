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

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.local.loopback import free_ports
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


def one_training(port: int) -> Manifest:
    """Return the configuration of a Prometheus that scrapes a training on this machine."""
    labels = {"namespace": "team", "run": "run-7"}
    return {"static_configs": [{"targets": [f"127.0.0.1:{port}"], "labels": labels}]}


def monitored(monitor: Manifest, api: KubernetesApi) -> Manifest:
    """Return what the Prometheus Operator makes of a PodMonitor or ServiceMonitor in this namespace.

    The targets are the present ones: Debian's Prometheus cannot ask a cluster.
    """
    spec = monitor["spec"]
    is_of_pods = monitor["kind"] == "PodMonitor"
    [endpoint] = spec["podMetricsEndpoints" if is_of_pods else "endpoints"]
    kind, port = ("pod", "pod_container_port") if is_of_pods else ("service", "endpoint_port")
    wanted = {**_labels(kind, spec["selector"]["matchLabels"]), f"{port}_name": endpoint["port"]}
    kept = [_kept(name, value) for name, value in wanted.items()]
    own = [
        {"source_labels": each["sourceLabels"], "target_label": each["targetLabel"]} for each in endpoint["relabelings"]
    ]
    named = {"source_labels": ["__meta_kubernetes_namespace"], "target_label": "namespace"}
    targets = _ports_of_pods(api) if is_of_pods else _ports_of_services(api)
    meta = [
        (
            address,
            {f"__meta_kubernetes_{name}": value for name, value in {**labels, "namespace": api.namespace}.items()},
        )
        for address, labels in targets
    ]
    static = [{"targets": [address], "labels": labels} for address, labels in meta]
    return {"static_configs": static, "relabel_configs": [*kept, named, *own]}


def _ports_of_pods(api: KubernetesApi) -> Iterator[tuple[str, dict[str, str]]]:
    for pod in api.get(api.path("v1", "pods"))["items"]:
        for container in pod["spec"]["containers"]:
            for port in container.get("ports", []):
                labels = _labels("pod", pod["metadata"]["labels"])
                yield (
                    f"{pod['status']['podIP']}:{port['containerPort']}",
                    {**labels, "pod_container_port_name": port["name"]},
                )


def _ports_of_services(api: KubernetesApi) -> Iterator[tuple[str, dict[str, str]]]:
    pods = {each["metadata"]["name"]: each for each in api.get(api.path("v1", "pods"))["items"]}
    for service in api.get(api.path("v1", "endpoints"))["items"]:
        for subset in service.get("subsets", []):
            for address in subset["addresses"]:
                of_pod = _labels("pod", pods[address["targetRef"]["name"]]["metadata"]["labels"])
                labels = _labels("service", service["metadata"].get("labels", {})) | of_pod
                for port in subset["ports"]:
                    yield f"{address['ip']}:{port['port']}", {**labels, "endpoint_port_name": port.get("name", "")}


def _labels(kind: str, labels: Manifest) -> dict[str, str]:
    return {f"{kind}_label_{re.sub(r'[^A-Za-z0-9]', '_', name)}": value for name, value in labels.items()}


def _kept(name: str, value: str) -> Manifest:
    return {"action": "keep", "source_labels": [f"__meta_kubernetes_{name}"], "regex": re.escape(value)}


@contextmanager
def prometheus(folder: Path, scrape: Manifest) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes trainings and evaluates the rules, each once per second."""
    port = free_ports(1)[0]
    _write_configuration(folder, scrape)
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


def _write_configuration(folder: Path, scrape: Manifest) -> None:
    rules = yaml.safe_dump(rule_groups(), width=1000)
    rules = AGE.sub("> 20", re.sub(r"\b(\d+)m\b", r"\1s", rules)).replace("[1h]", "[60s]")
    (folder / "rules.yaml").write_text(rules)
    configuration = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": ["rules.yaml"],
        "scrape_configs": [{"job_name": "kubetrain", **scrape}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(configuration))


def wait_until(is_true: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end
        time.sleep(0.2)
