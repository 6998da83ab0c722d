"""deploy/monitoring on a real cluster, with a real Prometheus that finds its targets as the operator's would."""

import shutil
from pathlib import Path

import pytest
import yaml

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.manifest import Manifest
from support.cluster import Bucket, await_that
from support.prometheus import MONITORING, monitored, prometheus, wait_until
from support.training_cluster import Cluster

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.core,
    pytest.mark.skipif(not shutil.which("prometheus"), reason="runs Prometheus (Debian's package)"),
]


def objects(file: str) -> dict[str, Manifest]:
    return {each["kind"]: each for each in yaml.safe_load_all((MONITORING / file).read_text())}


@pytest.mark.parametrize("kind", ["PodMonitor", "ServiceMonitor"])
def test_the_monitors_find_the_chief_of_an_elastic_training(
    kind: str, backend: KubernetesBackend, api: KubernetesApi, digits: Bucket, tmp_path: Path
) -> None:
    found = objects("pod_monitor.yaml" if kind == "PodMonitor" else "service_monitor.yaml")
    if service := found.get("Service"):
        api.create(api.path("v1", "services"), service)
    training = Cluster(api.namespace, digits).synthetic_training(
        epochs=100_000, workers=2, min_workers=1, launcher=Launcher.TRAINING_OPERATOR
    )
    handle = backend.create(training.to_job())
    await_that(lambda: len(addresses(api)) == 2, seconds=120)
    step = f'kubetrain_step{{namespace="{api.namespace}", run="{training.run_id}"}}'
    with prometheus(tmp_path, monitored(found[kind], api)) as server:
        wait_until(lambda: server.query(f"{step} > 20"))
        [chief] = server.query(step)
        targets = server.ask("targets")["activeTargets"]
    backend.delete(handle)
    assert {each["labels"]["run"] for each in targets} == {training.run_id}
    answering = [each["labels"]["instance"] for each in targets if each["health"] == "up"]
    assert answering == [chief["metric"]["instance"]]


def addresses(api: KubernetesApi) -> list[str]:
    pods = api.get(api.path("v1", "pods"))["items"]
    return [each["status"]["podIP"] for each in pods if each["status"].get("phase") == "Running"]
