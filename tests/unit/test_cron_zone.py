"""The time zone of cron schedules: read where the deployment has it, or said to be assumed."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kubetrain_pipelines.kubeflow import cron_zone
from kubetrain_pipelines.kubeflow.cron_zone import describe_cron_zone
from support.api_server import ApiServer, answer

STOCK = Path(__file__).parent / "manifests" / "kfp_scheduled_workflow.yaml"
DEPLOYMENT = "/apis/apps/v1/namespaces/kubeflow/deployments/ml-pipeline-scheduledworkflow"
CONFIG_MAP = "/api/v1/namespaces/kubeflow/configmaps/pipeline-install-config"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    monkeypatch.setattr(cron_zone, "RETRY_SECONDS", 0.1)
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


def install(cluster: ApiServer, env: list[dict[str, Any]] | None = None, **data: str) -> None:
    """Install the stock manifests, with other variables or data if given."""
    deployment, config_map = yaml.safe_load_all(STOCK.read_text())
    container = deployment["spec"]["template"]["spec"]["containers"][0]
    container["env"] = container["env"] if env is None else env
    cluster.put(DEPLOYMENT, spec=deployment["spec"])
    cluster.put(CONFIG_MAP, data={**config_map["data"], **data})


def variable(**source: Any) -> list[dict[str, Any]]:
    return [{"name": "CRON_SCHEDULE_TIMEZONE", **source}]


@pytest.mark.parametrize(
    ("zone", "said"),
    [
        ("UTC", "in UTC, says"),
        ("Asia/Tokyo", "in Asia/Tokyo, says the deployment"),
        ("", "in the local zone of its container"),
        ("Local", "in the local zone of its container"),
    ],
)
def test_the_zone_of_a_stock_installation_is_read_from_its_config_map(cluster: ApiServer, zone: str, said: str) -> None:
    install(cluster, cronScheduleTimezone=zone)
    assert said in describe_cron_zone()


def test_the_zone_may_be_in_the_deployment_itself(cluster: ApiServer) -> None:
    install(cluster, variable(value="Europe/Berlin"))
    assert "cron times are in Europe/Berlin" in describe_cron_zone()
    install(cluster, [])
    assert "in the local zone of its container" in describe_cron_zone()


def test_a_zone_that_cannot_be_read_is_assumed(cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "assumed to be in UTC" in describe_cron_zone()
    install(cluster, variable(valueFrom={"secretKeyRef": {"name": "a", "key": "b"}}))
    assert "assumed to be in UTC, the default" in describe_cron_zone()
    assert "it comes from secretKeyRef" in describe_cron_zone()
    install(cluster, variable(valueFrom={"configMapKeyRef": {"name": "gone", "key": "b"}}))
    assert "assumed to be in UTC" in describe_cron_zone()
    install(cluster)
    refusal = 'User "me" cannot get resource "configmaps" in API group "" in the namespace "kubeflow"'
    cluster.fail("configmaps", answer(403, refusal), times=9)
    assert "assumed to be in UTC" in describe_cron_zone()
    monkeypatch.setenv("KUBECONFIG", "/nosuch")
    assert "no cluster is configured" in describe_cron_zone()
