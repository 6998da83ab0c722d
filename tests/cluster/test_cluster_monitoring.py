"""deploy/monitoring on a real cluster, with a real Prometheus that finds its targets as the operator's would."""

import shutil
import threading
from pathlib import Path

import pytest
import yaml

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.manifest import Manifest
from support.cluster import Bucket
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
    kind: str, api: KubernetesApi, digits: Bucket, tmp_path: Path
) -> None:
    found = objects("pod_monitor.yaml" if kind == "PodMonitor" else "service_monitor.yaml")
    if service := found.get("Service"):
        api.create(api.path("v1", "services"), service)
    cluster = Cluster(api.namespace, digits)
    training = cluster.synthetic_training(epochs=60, workers=2, min_workers=1)
    launch = threading.Thread(target=lambda: cluster.launch(training))
    launch.start()
    cluster.await_line("step=")
    step = f'kubetrain_step{{namespace="{api.namespace}", run="{training.run_id}"}}'
    with prometheus(tmp_path, monitored(found[kind], api)) as server:
        wait_until(lambda: server.query(f"{step} > 20"))
        [chief] = server.query(step)
        targets = server.ask("targets")["activeTargets"]
    launch.join()
    assert {each["labels"]["run"] for each in targets} == {training.run_id}
    answering = [each["labels"]["instance"] for each in targets if each["health"] == "up"]
    assert answering == [chief["metric"]["instance"]]
