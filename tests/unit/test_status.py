"""`kubetrain status` of jobs in a cluster and of runs in Kubeflow Pipelines: what is read, and what follows changes."""

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_components.jobs.job_identity import JobIdentity
from kubetrain_components.jobs.kubernetes.errors import Unreachable
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import NEEDS_FIRST_ANNOTATION
from kubetrain_pipelines.cli.status import StatusOptions, status_and_show
from kubetrain_pipelines.kubeflow import follow_run
from kubetrain_pipelines.kubeflow.run import Run
from kubetrain_pipelines.kubeflow.stage_state import RunState
from kubetrain_pipelines.status import screen
from kubetrain_pipelines.status.screen import ResultUnknown
from kubetrain_pipelines.status.snapshot import Snapshot
from kubetrain_trainer.errors import InvalidSetting, KubetrainError, RunFailed
from support.api_server import PODS, ApiServer, answer, hang, stamp
from support.kfp_runs import Step, workflow
from support.kfp_server import KfpServer

JOBS = "/apis/batch/v1/namespaces/tests/jobs"
WORKFLOWS = "/apis/argoproj.io/v1alpha1/namespaces/tests/workflows"
LABELS = {"kubetrain/run-id": "nightly", "kubetrain/stage": "launch-training"}
NO_CPU = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/1 nodes are available: 1 Insufficient cpu.",
}
LINE = (
    "[kubetrain] step=3/9 loss=0.5 samples_per_second=80 data_wait_share=0.25 seconds_left=6 checkpoint_age_seconds=4"
)
DENIED = 'pods "train-0" is forbidden: User "me" cannot get resource "pods/log" in the namespace "tests"'


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A cluster with a training of one pod, for which no node has a CPU."""
    monkeypatch.setattr(screen, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(follow_run, "POLL_SECONDS", 0.01)
    monkeypatch.chdir(tmp_path)
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        server.put(f"{JOBS}/train", uid="uid-job", kind="Job", metadata={"labels": LABELS}, spec={"template": {}})
        put_pod(server, phase="Pending", conditions=[NO_CPU])
        yield server


def put_pod(server: ApiServer, node: str = "", **status: Any) -> None:
    labels = {"kubetrain/role": "worker", "batch.kubernetes.io/job-name": "train"}
    spec = {"containers": [{"name": "main"}], **({"nodeName": node} if node else {})}
    metadata = {"labels": labels, "ownerReferences": [{"uid": "uid-job"}]}
    server.put(f"{PODS}/train-0", metadata=metadata, spec=spec, status=status)


def start(server: ApiServer) -> None:
    server.put(f"{JOBS}/train", kind="Job", metadata={"labels": LABELS}, spec={"template": {}}, status={"active": 1})
    server.write(server.run("train-0"), f"{stamp(0)} ready\n{stamp(5)} {LINE}\n{stamp(6)} saved\n".encode())
    running = [{"name": "main", "restartCount": 0, "state": {"running": {}}}]
    put_pod(server, "node-1", phase="Running", containerStatuses=running)


def end(server: ApiServer, **condition: str) -> None:
    ended = [{"status": "True", **condition}]
    server.put(
        f"{JOBS}/train", kind="Job", metadata={"labels": LABELS}, spec={"template": {}}, status={"conditions": ended}
    )
    exit_code = 0 if condition["type"] == "Complete" else 1
    terminated = [{"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": exit_code}}}]
    phase = "Failed" if exit_code else "Succeeded"
    put_pod(server, "node-1", phase=phase, containerStatuses=terminated)


def show(capsys: pytest.CaptureFixture[str], run: str, **options: Any) -> str:
    status_and_show(StatusOptions(run=run, **options))
    return capsys.readouterr().out


@pytest.mark.parametrize("name", ["train", "nightly"])
def test_a_job_is_shown_with_what_it_waits_for(
    name: str, cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(capsys, name) == (
        "job train (Job): Pending\n"
        "  worker-0   Pending  -\n"
        "  waiting    worker-0: cannot be scheduled (0/1 nodes are available: 1\n"
        "             Insufficient cpu): request less, or change nodeSelector, affinity\n"
        "             or tolerations of pods.pod, train.preflight=avoid, or the nodes\n"
    )
    assert not [each for each in cluster.requests if not each.startswith("GET")], "nothing is changed"


def test_the_progress_is_the_newest_line_of_rank_0_with_its_time(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    start(cluster)
    (job,) = json.loads(show(capsys, "train", as_json=True))["jobs"]
    assert (job["state"], job["pods"][0]["node"]) == ("Running", "node-1")
    assert job["progress"] == {
        **{"step": "3/9", "loss": 0.5, "samples_per_second": 80.0, "data_wait_share": 0.25},
        **{"seconds_left": 6.0, "checkpoint_age_seconds": 4.0},
    }
    assert job["reported"] == stamp(5)[:19] + "+00:00"
    assert not [each for each in cluster.requests if "/events" in each], "those of a whole namespace may be many"


def test_the_progress_that_the_launcher_has_noted_is_shown_if_the_log_cannot_be_read(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    start(cluster)
    noted = {"kubetrain/progress": "[kubetrain] step=2/9"}
    status = cluster.objects[f"{JOBS}/train"]["status"]
    metadata = {"labels": LABELS, "annotations": noted}
    cluster.put(f"{JOBS}/train", kind="Job", metadata=metadata, spec={"template": {}}, status=status)
    cluster.fail("/log", answer(403, DENIED))
    shown = show(capsys, "train")
    assert "progress   step 2/9 · " in shown
    assert "could not be read: the log of worker-0: me may not get pods/log" in shown


def test_the_log_of_a_pod_that_may_have_lost_rank_0_is_not_asked(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    start(cluster)
    notes = {NEEDS_FIRST_ANNOTATION: "false", "kubetrain/progress": "[kubetrain] step=8/9"}
    metadata = {"labels": LABELS, "annotations": notes}
    cluster.put(f"{JOBS}/train", kind="Job", metadata=metadata, spec={"template": {}}, status={"active": 1})
    assert "progress   step 8/9 · " in show(capsys, "train")


def test_pods_that_may_not_be_read_are_no_sign_of_trouble(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    training = "/apis/kubeflow.org/v1/namespaces/tests/pytorchjobs/new"
    cluster.put(training, kind="PyTorchJob", spec={"pytorchReplicaSpecs": {}})
    assert "has not been taken up by its operator" in " ".join(show(capsys, "new").split())
    cluster.fail("/pods?", answer(403, DENIED.replace("pods/log", "pods")))
    shown = show(capsys, "new").splitlines()
    assert shown[0] == "job new (PyTorchJob): Pending"
    assert shown[1].startswith("could not be read: pods: me may not get pods"), shown


def test_a_run_with_a_similar_id_is_not_shown(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    labels = JobIdentity(pipeline="train", stage="launch_training", run_id="EXP.1").labels("")
    cluster.put(f"{JOBS}/train", kind="Job", metadata={"labels": labels}, spec={"template": {}})
    assert "job train (Job)" in show(capsys, "EXP.1")
    with pytest.raises(KubetrainError, match="no job or run named 'exp_1'"):
        show(capsys, "exp_1")


def test_a_name_that_does_not_exist_is_an_error_with_what_could_not_be_read(cluster: ApiServer) -> None:
    cluster.serve("kubeflow.org/v1", "pytorchjobs")
    cluster.fail(
        "/pytorchjobs", answer(403, 'pytorchjobs is forbidden: User "me" cannot list resource "pytorchjobs"'), 9
    )
    with pytest.raises(KubetrainError, match=r"no job or run named 'nosuch' \(PyTorchJobs: me may not list"):
        status_and_show(StatusOptions(run="nosuch"))


def after(cluster: ApiServer, number: int, change: Callable[[], None]) -> None:
    """Change something before the job is read for this time."""

    def count(handler: Any) -> bool:
        if not (remaining := remaining_reads.pop()):
            change()
        else:
            remaining_reads.append(remaining - 1)
            cluster.fail("/jobs?", count)
        return False

    remaining_reads = [number - 1]
    cluster.fail("/jobs?", count)


def test_watching_prints_what_changes_until_the_end(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    after(cluster, 3, lambda: (start(cluster), after(cluster, 3, lambda: end(cluster, type="Complete")))[0])
    output = show(capsys, "train", watch=True).splitlines()
    assert output[:3] == [
        "job train (Job): Pending",
        "worker-0 Pending -",
        "waiting worker-0: cannot be scheduled (0/1 nodes are available: 1 Insufficient cpu): request less, or change "
        "nodeSelector, affinity or tolerations of pods.pod, train.preflight=avoid, or the nodes",
    ]
    assert output[3:5] == ["job train (Job): Running", "worker-0 Running node-1"]
    assert output[5].startswith(
        "progress step 3/9 · loss 0.5000 · 80 samples/s · data wait 25% · time left 6 s · unsaved"
    )
    assert output[6:] == ["job train (Job): Succeeded", "worker-0 Succeeded node-1", "job train succeeded"]


def test_watching_a_job_that_fails_is_an_error(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    after(cluster, 2, lambda: end(cluster, type="Failed", message="BackoffLimitExceeded"))
    with pytest.raises(RunFailed, match=r"^job train failed: worker-0 exited with code 1$"):
        show(capsys, "train", watch=True)
    assert "cause worker-0 exited with code 1" in capsys.readouterr().out


def test_the_result_of_a_job_that_is_deleted_is_unknown(cluster: ApiServer) -> None:
    after(cluster, 2, lambda: cluster.remove(f"{JOBS}/train"))
    with pytest.raises(
        ResultUnknown, match=r"^job train can no longer be read, so how it ended is unknown: "
    ) as unknown:
        status_and_show(StatusOptions(run="train", watch=True))
    assert unknown.value.exit_code == 3


def test_watching_continues_through_an_outage(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubetrain_pipelines.cli.find.RETRY_SECONDS", 0.0)

    def fail_once(handler: Any) -> bool:
        end(cluster, type="Complete")
        return hang(0.0)(handler)

    after(cluster, 2, lambda: cluster.fail("/jobs?", fail_once))
    output = show(capsys, "train", watch=True)
    assert "; retrying" in output
    assert output.endswith("job train succeeded\n")


def test_an_outage_lasts_from_the_last_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    run = Run(id="r", name="nightly", state=RunState.RUNNING, created=datetime.now(UTC), ended=None)
    going, over = Snapshot(run=run), Snapshot(run=replace(run, state=RunState.SUCCEEDED))
    answers, now = [going, going, Unreachable("no route"), over], 0.0

    def read_much_later() -> Snapshot:
        nonlocal now
        now += screen.OUTAGE_TIMEOUT_SECONDS - 1
        if isinstance(answer := answers.pop(0), Unreachable):
            raise answer
        return answer

    monkeypatch.setattr(screen, "time", SimpleNamespace(monotonic=lambda: now, sleep=lambda seconds: None))
    said: list[str] = []
    assert [*screen.follow(read_much_later, said.append)] == [going, going, going, over]
    assert said == ["no route; retrying"]


@pytest.fixture
def kfp(cluster: ApiServer) -> Iterator[KfpServer]:
    """A run whose training waits in that cluster, and whose next step has a pod that waits too."""
    with KfpServer() as server:
        running = workflow([Step(task="sync-dataset"), Step(task="launch-training", state="RUNNING", ended=None)])
        made = server.add("runs", running)
        cluster.put(f"{WORKFLOWS}/x", metadata={"labels": {"pipeline/runid": made["run_id"]}})
        labels = {**LABELS, "kubetrain/run-id": made["run_id"]}
        cluster.put(f"{JOBS}/train", kind="Job", metadata={"labels": labels}, spec={"template": {}})
        yield server


def test_a_run_is_shown_with_its_jobs_and_what_its_steps_wait_for(
    kfp: KfpServer, cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    (run_id,) = kfp.kinds["runs"]
    step = {"workflows.argoproj.io/node-name": "train-x(0).root(0).launch-training(0).executor(0)"}
    cluster.put(
        f"{PODS}/driver",
        metadata={"labels": {"pipeline/runid": run_id}, "annotations": step},
        spec={"containers": []},
        status={"phase": "Pending", "conditions": [NO_CPU]},
    )
    output = show(capsys, "x", endpoint=kfp.endpoint, namespace="tests")
    assert "  launch-training  running  " in output
    assert "waiting: launch-training: its pod: cannot be scheduled (0/1 nodes" in output
    assert "job train (Job): Pending\n  worker-0   Pending  -\n  waiting    worker-0: cannot be scheduled" in output
    found = json.loads(show(capsys, run_id, endpoint=kfp.endpoint, namespace="tests", as_json=True))
    assert (found["run_id"], found["state"], found["jobs"][0]["name"]) == (run_id, "running", "train")


def test_of_a_run_the_jobs_that_have_ended_are_left_out(
    kfp: KfpServer, cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    labels = cluster.objects[f"{JOBS}/train"]["metadata"]["labels"]
    end(cluster, type="Complete")
    cluster.objects[f"{JOBS}/train"]["metadata"]["labels"] = labels
    assert json.loads(show(capsys, "x", endpoint=kfp.endpoint, namespace="tests", as_json=True))["jobs"] == []


def test_a_run_whose_cluster_cannot_be_asked_says_so(
    kfp: KfpServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KUBECONFIG", "/nosuch")
    assert "could not be read: jobs: no cluster is configured" in show(capsys, "x", endpoint=kfp.endpoint)


def test_a_job_is_found_by_its_name_beside_kubeflow_pipelines(
    kfp: KfpServer, capsys: pytest.CaptureFixture[str]
) -> None:
    assert show(capsys, "train", endpoint=kfp.endpoint, namespace="tests").startswith("job train (Job): Pending")
    kfp.token = "another"
    assert show(capsys, "train", endpoint=kfp.endpoint).startswith("job train (Job): Pending")


def test_of_a_job_that_has_ended_no_log_is_read(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    start(cluster)
    end(cluster, type="Complete")
    assert show(capsys, "train") == "job train (Job): Succeeded\n  worker-0   Succeeded  node-1\n"
    assert not [each for each in cluster.requests if "/log" in each]


@pytest.mark.parametrize("options", [{"as_json": True, "run": "train"}, {"run": "", "endpoint": "http://127.0.0.1:1"}])
def test_watching_needs_one_run_and_a_reader(options: dict[str, Any]) -> None:
    with pytest.raises(InvalidSetting, match="--watch needs a RUN, and cannot be combined with --json"):
        status_and_show(StatusOptions(watch=True, **options))


def test_without_a_workspace_and_an_endpoint_there_is_nothing_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSetting, match="there is no kubetrain-workspace here, and no Kubeflow"):
        status_and_show(StatusOptions())
