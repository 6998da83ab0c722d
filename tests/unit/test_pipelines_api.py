"""The doctor asks Kubeflow Pipelines for its version, also behind a gateway, where the UI server answers."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_pipelines.cli.doctor import DoctorOptions, connected_api
from kubetrain_pipelines.doctor.cluster import Cluster
from kubetrain_pipelines.doctor.finding import Finding, Status
from kubetrain_pipelines.doctor.pipelines_api import check_pipelines
from kubetrain_pipelines.kubeflow.connection import Connection
from support.api_server import ApiServer
from support.kfp_server import KfpServer


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield Cluster(KubernetesApi.connect())


@pytest.fixture(params=[False, True], ids=["api", "ui"])
def server(request: pytest.FixtureRequest) -> Iterator[KfpServer]:
    with KfpServer(ui=request.param) as server:
        yield server


def judged(cluster: Cluster, server: KfpServer) -> Finding:
    return check_pipelines(cluster, Connection(endpoint=server.endpoint, environment={}))


@pytest.mark.parametrize(
    ("tag", "status"),
    [("2.17.0", Status.OK), ("2.16.1", Status.WARNING), ("2.15.0", Status.MISSING)],
)
def test_the_version_is_known(cluster: Cluster, server: KfpServer, tag: str, status: Status) -> None:
    server.tag = tag
    finding = judged(cluster, server)
    assert finding.status is status
    assert f"version {tag}" in finding.evidence


def test_a_multi_user_server_needs_the_profile_that_submit_needs(cluster: Cluster, server: KfpServer) -> None:
    server.namespace = "team-a"
    answered = check_pipelines(cluster, Connection(endpoint=server.endpoint, namespace="team-a", environment={}))
    assert answered.status is Status.OK
    assert "so runs need a profile" in judged(cluster, server).evidence


@pytest.mark.parametrize(
    ("options", "namespace"),
    [({}, "kubeflow"), ({"namespace": "team"}, "team"), ({"endpoint": ""}, "tests")],
    ids=["default", "given", "no endpoint"],
)
def test_the_doctor_checks_the_namespace_of_submit(
    cluster: Cluster, server: KfpServer, options: dict[str, str], namespace: str
) -> None:
    assert connected_api(DoctorOptions(**{"endpoint": server.endpoint, **options})).namespace == namespace


def test_a_ui_whose_api_server_is_down_is_not_ok(cluster: Cluster) -> None:
    with KfpServer(ui=True) as server:
        server.is_api_up = False
        finding = judged(cluster, server)
    assert finding.status is Status.MISSING
    assert "its API server does not" in finding.evidence
    assert "kubectl -n kubeflow logs deployment/ml-pipeline" in finding.remedy
