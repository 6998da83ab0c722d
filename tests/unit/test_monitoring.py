"""deploy/monitoring: it finds the pods that kubetrain makes, and names only metrics that their page has."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

import pytest
import yaml

from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.kubernetes.manifests.pod_template import pod_template
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.reporting.metrics_page import GAUGES, MetricsPage
from kubetrain_trainer.reporting.own_time import LARGE_WAIT_SHARE, SHORTER_WAITS
from kubetrain_trainer.reporting.step_window import StepWindow
from kubetrain_trainer.reporting.stragglers import LARGE_DELAY_SHARE
from kubetrain_trainer.reporting.time_spent import CAUSES
from support.manifests import batch, elastic, indexed, pytorch, tensorflow, trainjob
from support.outside import samples_of
from support.prometheus import MONITORING, alert_rules, dashboard_queries

METRIC = re.compile(r"\bkubetrain_(\w+)")
TRAININGS = [pytorch, elastic, tensorflow, indexed, trainjob]


def document(file: str, kind: str) -> Manifest:
    documents = yaml.safe_load_all((MONITORING / file).read_text())
    (found,) = [each for each in documents if each["kind"] == kind]
    return dict(found)


def full_page() -> set[str]:
    """Return the names of all metrics that a training of either framework can have."""
    window = StepWindow()
    window.count_step(samples=8)
    page = MetricsPage("run", world_size=2, restarts=0)
    slow = {"rank": 3, "node": "gpu-7", "part": "data", "delay_share": 0.3}
    page.show_steps(dict.fromkeys(GAUGES, 1), window, [slow])
    page.show_checkpoint({"loss": 1.0}, stall_seconds=0.5)
    page.show_time(dict.fromkeys(CAUSES, 1.0))
    page.show_logged({"own": 1.0})
    return {name for name, _ in samples_of(page.text())}


@pytest.mark.parametrize("query", [*(rule["expr"] for rule in alert_rules()), *dashboard_queries()])
def test_every_metric_is_one_that_trainings_serve(query: str) -> None:
    named = set(METRIC.findall(query))
    assert named and named <= full_page()


def test_the_variables_of_the_dashboard_are_values_of_a_metric() -> None:
    variables = json.loads((MONITORING / "dashboard.json").read_text())["templating"]["list"]
    queries = [each["query"]["query"] for each in variables if each["type"] == "query"]
    assert {name for query in queries for name in METRIC.findall(query)} <= full_page()


@pytest.mark.parametrize("rule", alert_rules(), ids=lambda rule: rule["alert"])
def test_an_alert_names_its_run_and_what_to_do(rule: dict[str, Any]) -> None:
    assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
    assert rule["labels"]["severity"] in ("info", "warning", "critical")
    assert "{{ $labels.run }}" in rule["annotations"]["summary"]
    assert rule["annotations"]["description"]


def test_the_alert_and_the_training_warn_of_slow_data_alike() -> None:
    (rule,) = [each for each in alert_rules() if each["alert"] == "KubetrainWaitsForData"]
    assert rule["expr"].endswith(f">= {LARGE_WAIT_SHARE}")
    assert rule["annotations"]["description"].lower() == f"{SHORTER_WAITS}.".lower()


def test_the_alert_and_the_training_call_the_same_processes_slow() -> None:
    (rule,) = [each for each in alert_rules() if each["alert"] == "KubetrainStraggler"]
    assert rule["expr"].endswith(f">= {LARGE_DELAY_SHARE}")


def labels_and_ports(job: Job) -> tuple[dict[str, str], list[Any]]:
    (lead,) = [replica for replica in job.replicas if replica.role == job.lead_role]
    template = pod_template(job, lead)
    return template["metadata"]["labels"], template["spec"]["containers"][0].get("ports", [])


@pytest.mark.parametrize("job", TRAININGS, ids=lambda job: job.__name__)
def test_the_monitors_find_the_chief_of_every_training(job: Callable[..., Job]) -> None:
    labels, ports = labels_and_ports(job(metrics_port=9000))
    (endpoint,) = document("pod_monitor.yaml", "PodMonitor")["spec"]["podMetricsEndpoints"]
    (service_port,) = document("service_monitor.yaml", "Service")["spec"]["ports"]
    assert {"name": endpoint["port"], "containerPort": 9000} in ports
    assert service_port["targetPort"] == endpoint["port"]
    selector = document("pod_monitor.yaml", "PodMonitor")["spec"]["selector"]["matchLabels"]
    assert selector == document("service_monitor.yaml", "Service")["spec"]["selector"]
    assert selector.items() <= labels.items()


def test_the_monitors_leave_other_pods_alone() -> None:
    labels, _ = labels_and_ports(batch())
    selector = document("pod_monitor.yaml", "PodMonitor")["spec"]["selector"]["matchLabels"]
    assert not selector.items() <= labels.items()


def test_the_service_monitor_finds_the_service() -> None:
    service = document("service_monitor.yaml", "Service")
    monitor = document("service_monitor.yaml", "ServiceMonitor")["spec"]
    assert monitor["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
    assert [each["port"] for each in monitor["endpoints"]] == [each["name"] for each in service["spec"]["ports"]]


def test_each_monitor_names_the_run_by_a_label_of_its_pods() -> None:
    pods = document("pod_monitor.yaml", "PodMonitor")["spec"]["podMetricsEndpoints"][0]["relabelings"]
    assert pods == document("service_monitor.yaml", "ServiceMonitor")["spec"]["endpoints"][0]["relabelings"]
    labels, _ = labels_and_ports(pytorch())
    names = {f"__meta_kubernetes_pod_label_{re.sub(r'[^a-zA-Z0-9_]', '_', label)}": label for label in labels}
    (relabeling,) = pods
    (source,) = relabeling["sourceLabels"]
    assert (relabeling["targetLabel"], labels[names[source]]) == ("run", "run-7-94d812ac")


@pytest.mark.skipif(not shutil.which("kubectl"), reason="renders with kubectl")
def test_kustomize_renders_the_objects_in_your_namespace() -> None:
    done = subprocess.run(["kubectl", "kustomize", MONITORING], check=True, capture_output=True, text=True)
    made = {each["kind"]: each for each in yaml.safe_load_all(done.stdout)}
    assert set(made) == {"ConfigMap", "PodMonitor", "PrometheusRule"}
    assert {each["metadata"]["namespace"] for each in made.values()} == {"kubetrain"}
    assert json.loads(made["ConfigMap"]["data"]["kubetrain.json"])["title"] == "kubetrain"
