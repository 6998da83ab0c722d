"""The parts of a run that only the Kubernetes API knows, such as which of its jobs are still running."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.kubernetes.errors import Forbidden
from kubetrain_pipelines.kubeflow import cancel_run, run_in_cluster
from kubetrain_pipelines.kubeflow.connection import Connection
from kubetrain_pipelines.kubeflow.follow_run import RunProgress
from kubetrain_pipelines.kubeflow.kfp_api import KfpApi
from kubetrain_pipelines.kubeflow.kfp_errors import KfpError
from kubetrain_pipelines.kubeflow.run_in_cluster import NotInThisCluster, RunInCluster
from support.api_server import PODS, ApiServer, answer, not_served
from support.kfp_server import KfpServer

NAMESPACE = "/namespaces/tests/"
WORKFLOWS = f"/apis/argoproj.io/v1alpha1{NAMESPACE}workflows"
PYTORCH_JOBS = f"/apis/kubeflow.org/v1{NAMESPACE}pytorchjobs"
BATCH_JOBS = f"/apis/batch/v1{NAMESPACE}jobs"
RUN = "0b9a6f2e-6c1e-4f6a-8f0e-1c5f3f1f7a11"
OURS, OF_RUN = {"kubetrain/run-id": RUN}, {"pipeline/runid": RUN}


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        server.put(f"{WORKFLOWS}/train-x", metadata={"labels": OF_RUN}, status={"nodes": {}})
        yield server


@pytest.fixture
def kfp(monkeypatch: pytest.MonkeyPatch) -> Iterator[KfpServer]:
    monkeypatch.setattr(cancel_run, "POLL_SECONDS", 0.01)
    with KfpServer() as server:
        made = server.add("runs", {"display_name": "nightly", "state": "SUCCEEDED", "pipeline_version_reference": {}})
        server.kinds["runs"] = {RUN: {**made, "run_id": RUN}}
        yield server


def api_of(kfp: KfpServer) -> KfpApi:
    return KfpApi(Connection(endpoint=kfp.endpoint, namespace="tests", environment={}))


def test_only_jobs_and_pods_that_have_not_ended_are_still_running(cluster: ApiServer) -> None:
    done = {"conditions": [{"type": "Complete", "status": "True"}]}
    running = {"conditions": [{"type": "Created", "status": "True"}, {"type": "Succeeded", "status": "False"}]}
    cluster.put(f"{BATCH_JOBS}/transfer", metadata={"labels": OURS}, status=done)
    cluster.put(f"{PYTORCH_JOBS}/training", metadata={"labels": OURS}, status=running)
    cluster.put(f"{PYTORCH_JOBS}/others", metadata={"labels": {"kubetrain/run-id": "another"}}, status=running)
    cluster.put(f"{PODS}/transfer-0", metadata={"labels": OURS}, status={"phase": "Succeeded"})
    cluster.put(f"{PODS}/training-0", metadata={"labels": OURS}, status={"phase": "Running"})
    assert RunInCluster.connect("tests", RUN).still_running() == ["PyTorchJob training", "pod training-0"]


TRAIN_JOBS = "/apis/trainer.kubeflow.org/v1alpha1"
REFUSED = answer(403, 'User "me" cannot list resource "trainjobs" in API group "trainer.kubeflow.org"')


def test_a_train_job_that_has_not_ended_is_still_running(cluster: ApiServer) -> None:
    cluster.put(f"{TRAIN_JOBS}{NAMESPACE}trainjobs/training", metadata={"labels": OURS}, status={})
    assert RunInCluster.connect("tests", RUN).still_running() == ["TrainJob training"]


def test_a_cluster_without_trainer_may_refuse_to_list_its_jobs(cluster: ApiServer) -> None:
    cluster.fail(f"{TRAIN_JOBS}{NAMESPACE}trainjobs", REFUSED)
    cluster.fail(f"GET {TRAIN_JOBS}", not_served)
    cluster.put(f"{BATCH_JOBS}/training", metadata={"labels": OURS}, status={})
    assert RunInCluster.connect("tests", RUN).still_running() == ["Job training"]


def test_jobs_that_a_cluster_has_but_may_not_be_listed_are_an_error(cluster: ApiServer) -> None:
    cluster.put(TRAIN_JOBS, resources=[{"name": "trainjobs"}], metadata={})
    cluster.fail(f"{TRAIN_JOBS}{NAMESPACE}trainjobs", REFUSED)
    with pytest.raises(Forbidden, match="me may not list trainjobs"):
        RunInCluster.connect("tests", RUN).still_running()


def test_the_progress_of_jobs_is_what_they_report(cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_in_cluster, "RETRY_SECONDS", 0.3)
    reported = {"kubetrain/stage": "launch_training", "kubetrain/progress": "[kubetrain] step=130/300 loss=0.5"}
    cluster.put(f"{PYTORCH_JOBS}/training", metadata={"labels": OURS, "annotations": reported}, status={})
    cluster.put(f"{BATCH_JOBS}/silent", metadata={"labels": OURS, "annotations": {"kubetrain/stage": "x"}}, status={})
    cluster.put(f"{BATCH_JOBS}/by-hand", metadata={"labels": OURS}, status={})
    progress = RunProgress("tests", RUN)
    assert progress.changes() == {"launch-training": {"step": "130/300", "loss": 0.5}}
    assert progress.changes() == {}
    reported["kubetrain/progress"] = "[kubetrain] step=140/300"
    cluster.put(f"{PYTORCH_JOBS}/training", metadata={"labels": OURS, "annotations": reported}, status={})
    cluster.refuse()
    assert progress.changes() == {}
    cluster.listen()
    assert progress.changes() == {"launch-training": {"step": "140/300"}}


def test_an_unreachable_cluster_is_asked_once(cluster: ApiServer) -> None:
    progress = RunProgress("tests", "another")
    assert [progress.changes(), progress.changes()] == [{}, {}]
    assert len(cluster.requests) == 1


def test_a_cluster_without_the_run_is_an_error(cluster: ApiServer) -> None:
    with pytest.raises(NotInThisCluster, match="no workflow of run another in namespace tests"):
        RunInCluster.connect("tests", "another")


def test_canceling_waits_until_every_job_has_stopped(
    cluster: ApiServer, kfp: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.put(f"{PYTORCH_JOBS}/training", metadata={"labels": OURS}, status={})
    looks = iter(range(3))

    def end_after_three(handler: Any) -> bool:
        if next(looks) == 2:
            cluster.remove(f"{PYTORCH_JOBS}/training")
        return False

    cluster.fail(f"GET {PYTORCH_JOBS}", end_after_three, times=3)
    cancel_run.cancel_run(api_of(kfp), RUN, print)
    assert "all of its jobs and pods have stopped" in capsys.readouterr().out


def test_a_job_that_its_launcher_could_not_delete_is_deleted(
    cluster: ApiServer, kfp: KfpServer, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cancel_run, "LAUNCHER_SECONDS", 0.0)
    cluster.put(f"{PYTORCH_JOBS}/training", metadata={"labels": OURS, "uid": "1"}, status={})
    ended = {"conditions": [{"type": "Succeeded", "status": "True"}]}
    cluster.put(f"{PYTORCH_JOBS}/evaluation", metadata={"labels": OURS, "uid": "2"}, status=ended)
    cancel_run.cancel_run(api_of(kfp), RUN, print)
    assert "all of its jobs and pods have stopped" in capsys.readouterr().out
    assert [each for each in cluster.requests if each.startswith("DELETE")] == [f"DELETE {PYTORCH_JOBS}/training"]


def test_a_job_that_keeps_running_is_an_error(
    cluster: ApiServer, kfp: KfpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cancel_run, "LAUNCHER_SECONDS", 0.0)
    cluster.put(f"{PYTORCH_JOBS}/training", metadata={"labels": OURS, "uid": "1"}, status={})
    cluster.fail("DELETE", answer(403, 'User "me" cannot delete resource "pytorchjobs"'), times=1000)
    with pytest.raises(KfpError, match="still running: PyTorchJob training; delete them with `kubectl"):
        cancel_run.cancel_run(api_of(kfp), RUN, print, timeout_seconds=0.1)


def test_canceling_reports_what_it_could_not_verify(
    cluster: ApiServer, kfp: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.put("/apis/kubeflow.org/v1", resources=[{"name": "pytorchjobs"}])
    refusal = 'User "me" cannot list resource "pytorchjobs" in the namespace "tests"'
    cluster.fail(f"GET {PYTORCH_JOBS}", answer(403, refusal))
    cancel_run.cancel_run(api_of(kfp), RUN, print)
    assert "could not verify that its jobs have stopped: me may not list pytorchjobs" in capsys.readouterr().out
