"""`kubetrain logs` and `cancel` of a job in a cluster, of a folder on this machine, and of the beginning of an ID."""

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.errors import Forbidden
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_pipelines.cli import cancel
from kubetrain_pipelines.cli.cancel import cancel_and_show
from kubetrain_pipelines.cli.find import FoundRun, find
from kubetrain_pipelines.cli.logs import show_logs
from kubetrain_pipelines.kubeflow.connection_options import ConnectionOptions
from kubetrain_pipelines.local_run.record import RunRecord, write_start
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.settings.config import TrainConfig
from support.api_server import PODS, ApiServer, Handler, answer
from support.jobs import job, script
from support.kfp_runs import Step, kfp_without_cluster, workflow
from support.kfp_server import KfpServer

JOBS = "/apis/batch/v1/namespaces/tests/jobs"
HOLDER = """
import sys
from pathlib import Path
from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.local.backend import LocalBackend
from support.jobs import job, script
with interrupted_by_sigterm(), LocalBackend(Path(sys.argv[1])) as backend:
    handle = backend.create(job(script("import time; print('at work'); time.sleep(3600)"), run_id="run-1"))
    print("started", flush=True)
    try:
        for state in backend.watch(handle):
            pass
    finally:
        backend.delete(handle)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A cluster with a job of one running pod, and an earlier job of the same run that has failed."""
    monkeypatch.setattr(cancel, "POLL_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        labels = {"kubetrain/run-id": "nightly"}
        failed = {"conditions": [{"type": "Failed", "status": "True"}]}
        server.put(f"{JOBS}/train-a1", kind="Job", metadata={"labels": labels}, spec={"template": {}}, status=failed)
        later = {"labels": labels, "creationTimestamp": "2027-01-01T00:00:00Z"}
        server.put(f"{JOBS}/train", uid="uid-job", kind="Job", metadata=later, spec={"template": {}})
        server.write(server.run("train-0"), b"2027-01-01T00:00:00Z step=1\n")
        of_job = {"kubetrain/role": "worker", "batch.kubernetes.io/job-name": "train"}
        running = server.objects[f"{PODS}/train-0"]["status"]
        server.put(
            f"{PODS}/train-0",
            metadata={"labels": of_job, "ownerReferences": [{"uid": "uid-job"}]},
            spec={"containers": [{"name": "main"}]},
            status=running,
        )
        yield server


@pytest.fixture
def kfp() -> Iterator[KfpServer]:
    with kfp_without_cluster() as server:
        yield server


@pytest.mark.parametrize("name", ["train", "nightly"])
def test_the_logs_of_a_job_are_those_of_its_pods(
    name: str, cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    show_logs(name, ConnectionOptions())
    assert capsys.readouterr().out == "== worker-0\n2027-01-01T00:00:00Z step=1\n"
    assert not [each for each in cluster.requests if not each.startswith("GET")], "nothing is changed"


def test_the_logs_of_a_folder_are_those_of_its_jobs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with LocalBackend(tmp_path / ".jobs") as backend:
        states = backend.watch(backend.create(job(script("print('a'); print('b', end='')"), script("print('c')"))))
        while (state := next(states)) is not None and not state.is_over:
            pass
    show_logs(str(tmp_path), ConnectionOptions())
    assert capsys.readouterr().out == "== chief-0\na\nb\n== worker1-0\nc\n"


@pytest.mark.parametrize("option", [{"follow": True}, {"stage": "launch-training"}])
def test_only_runs_in_kubeflow_pipelines_have_stages_to_follow(option: dict[str, Any], cluster: ApiServer) -> None:
    with pytest.raises(InvalidSetting, match="'train' is not a run in Kubeflow Pipelines: leave out --follow and"):
        show_logs("train", ConnectionOptions(), **option)


def test_a_job_without_a_log_says_what_could_not_be_read(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster.fail("/log", answer(403, 'pods "train-0" is forbidden: User "me" cannot get resource "pods/log"'))
    with pytest.raises(KubetrainError, match="'train' has no log yet: see `kubetrain status train`"):
        show_logs("train", ConnectionOptions())
    assert "could not be read: the log of worker-0: me may not get pods/log" in capsys.readouterr().err


def test_the_beginning_of_an_id_names_a_run(kfp: KfpServer, capsys: pytest.CaptureFixture[str]) -> None:
    step = Step(task="launch-training")
    run_id = kfp.add("runs", workflow([step], "SUCCEEDED"))["run_id"]
    kfp.logs[step.pods()[0]] = "step=1\n"
    show_logs(run_id[:6], ConnectionOptions(endpoint=kfp.endpoint))
    assert capsys.readouterr().out == "== launch-training\nstep=1\n"
    kfp.fail(":terminate", answer(400, "Row not found"))
    cancel_and_show(run_id[:6], ConnectionOptions(endpoint=kfp.endpoint))
    assert f"run {run_id} had already ended (succeeded)" in capsys.readouterr().out


def test_a_folder_comes_before_a_run_and_a_run_before_a_job(kfp: KfpServer, cluster: ApiServer) -> None:
    kfp.add("runs", {"display_name": "train", "state": "SUCCEEDED"})
    options = ConnectionOptions(endpoint=kfp.endpoint)
    assert isinstance(find("train", options), FoundRun)
    assert isinstance(find("nightly", options), KubernetesApi)
    Path("train").mkdir()
    assert find("train", options) == Path("train")


def end_pod(cluster: ApiServer) -> None:
    """Delete the pod once it has been seen to run after its job was deleted, as the garbage collection does."""

    def collect(handler: Handler) -> bool:
        threading.Timer(0.1, cluster.remove, (f"{PODS}/train-0",)).start()
        return False

    cluster.fail("GET /api/v1/namespaces/tests/pods", collect)


@pytest.mark.parametrize("name", ["train", "nightly"])
def test_canceling_a_job_deletes_it_and_waits_for_its_pods(
    name: str, cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    end_pod(cluster)
    cancel_and_show(name, ConnectionOptions())
    assert capsys.readouterr().out == "deleted Job train\nall of its pods have stopped\n"
    assert [each for each in cluster.requests if each.startswith("DELETE")] == [f"DELETE {JOBS}/train"]
    assert f"{PODS}/train-0" not in cluster.objects
    assert f"{JOBS}/train-a1" in cluster.objects, "what has ended stays for inspection"


def test_a_pod_that_does_not_end_is_an_error(cluster: ApiServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel, "TIMEOUT_SECONDS", 0.1)
    with pytest.raises(KubetrainError, match=r"pod train-0 still runs 0\.1 s after it was asked to stop: end it by"):
        cancel_and_show("train", ConnectionOptions())


def test_pods_that_may_not_be_listed_are_not_said_to_have_stopped(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    denied = 'pods is forbidden: User "me" cannot list resource "pods" in API group "" in the namespace "tests"'
    cluster.fail("GET /api/v1/namespaces/tests/pods", answer(403, denied))
    with pytest.raises(Forbidden, match="me may not list pods"):
        cancel_and_show("train", ConnectionOptions())
    assert capsys.readouterr().out == "deleted Job train\n"


def test_a_job_that_has_ended_is_left_alone(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    cancel_and_show("train-a1", ConnectionOptions())
    assert capsys.readouterr().out == "train-a1 had already ended: nothing to cancel\n"
    assert not [each for each in cluster.requests if not each.startswith("GET")]


@pytest.mark.parametrize("place", [".", "run-1"], ids=["root", "output"])
def test_canceling_a_folder_stops_its_training(place: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "run-1").mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, tmp_path / ".jobs"],
        cwd=Path(__file__).parents[1],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    assert holder.stdout
    holder.stdout.readline()
    cancel_and_show(str(tmp_path / place), ConnectionOptions())
    asked, stopped = capsys.readouterr().out.splitlines()
    assert (asked.startswith("asked job p-launch-training"), stopped.endswith(" has stopped")) == (True, True)
    assert not list((tmp_path / ".jobs").glob("*/job.json"))
    assert holder.wait(timeout=10) == 1


def make_workspace(path: Path, **changes: Any) -> Path:
    """Return the workspace of a run of this very process."""
    of_run = {"pipeline": "train-pytorch", "asked": {}, "settings": {}, "config": TrainConfig(), "started": 1.0}
    write_start(RunRecord(workspace=path, run_id="r-1", **{**of_run, **changes}))
    return path


def test_a_run_that_ignores_the_request_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancel, "TIMEOUT_SECONDS", 0.1)
    deaf = subprocess.Popen(
        [sys.executable, "-c", "import signal; signal.signal(15, signal.SIG_IGN); print(flush=True); signal.pause()"],
        stdout=subprocess.PIPE,
    )
    assert deaf.stdout
    deaf.stdout.readline()
    make_workspace(tmp_path, owner={"pid": deaf.pid, "started": psutil.Process(deaf.pid).create_time()})
    with pytest.raises(KubetrainError, match=r"run r-1 still runs 0\.1 s after it was asked to stop"):
        cancel_and_show(str(tmp_path), ConnectionOptions())
    deaf.kill()
    deaf.communicate()


def test_a_run_that_has_ended_here_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cancel_and_show(str(make_workspace(tmp_path, status="succeeded")), ConnectionOptions())
    assert capsys.readouterr().out == "run r-1 had already ended: nothing to cancel\n"


def test_a_name_that_is_empty_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="a name is empty"):
        cancel_and_show("", ConnectionOptions())
