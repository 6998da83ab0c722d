"""`kubetrain diagnose` of runs and jobs: on this machine, in a cluster, in Kubeflow Pipelines."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_components.jobs.job import RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobHandle, Phase
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.jobs.local.record import LocalRecord, this_process
from kubetrain_pipelines.cli.diagnose import DiagnoseOptions, diagnose_and_show
from kubetrain_pipelines.jobs.local_jobs import RECORD_SCHEMA
from kubetrain_pipelines.status.local import read_local
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from support.api_server import PODS, ApiServer
from support.jobs import job, script
from support.kfp_runs import Step, kfp_without_cluster, workflow
from support.kfp_server import KfpServer

DEAD = {"pid": 2**22 + 1, "started": 1.0}
"""The owner of a job or run whose process has ended."""
OOM = "torch.OutOfMemoryError: CUDA out of memory."
JOBS = "/apis/batch/v1/namespaces/tests/jobs"
EVENTS = "/api/v1/namespaces/tests/events"


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    """A cluster with a job of one failed pod, whose log has the cause."""
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        failed = {"type": "Failed", "status": "True", "message": "backoff limit"}
        labels = {"kubetrain/run-id": "nightly"}
        spec: dict[str, object] = {"template": {}}
        server.put(
            f"{JOBS}/train", uid="uid-job", metadata={"labels": labels}, spec=spec, status={"conditions": [failed]}
        )
        server.write(server.run("train-0"), f"{OOM}\n".encode())
        ended = {"name": "main", "restartCount": 0, "state": {"terminated": {"exitCode": 1}}}
        of_job = {"kubetrain/role": "worker", "batch.kubernetes.io/job-name": "train"}
        server.put(
            f"{PODS}/train-0",
            metadata={"labels": of_job, "ownerReferences": [{"uid": "uid-job"}]},
            spec={"containers": [{"name": "main"}], "nodeName": "node-1"},
            status={"phase": "Failed", "containerStatuses": [ended]},
        )
        yield server


def shown(capsys: pytest.CaptureFixture[str], *targets: str | Path, **options: object) -> tuple[int, str]:
    code = diagnose_and_show(DiagnoseOptions(targets=[*map(str, targets)], **options))  # type: ignore[arg-type]
    return code, capsys.readouterr().out


@pytest.mark.parametrize("name", ["train", "nightly"])
def test_a_job_in_the_cluster_is_found_by_its_name_or_run(
    name: str, cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = shown(capsys, name)
    assert output.startswith(
        "job train: failed, 1 log read\n\n1. The memory of a GPU ran out (proven)\n   worker-0.log:1:"
    )
    assert code == 1
    assert not [each for each in cluster.requests if not each.startswith("GET")], "nothing is changed"


def test_the_log_of_a_failed_pod_is_read_beside_that_of_its_replacement(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = cluster.objects[f"{PODS}/train-0"]
    cluster.write(cluster.run("train-1"), b"[kubetrain] step=1/9 loss=0.5\n")
    again = {key: value for key, value in failed["metadata"].items() if key in ("labels", "ownerReferences")}
    cluster.put(f"{PODS}/train-1", metadata=again, spec=failed["spec"], status={**failed["status"], "phase": "Running"})
    _, output = shown(capsys, "train")
    assert "2 logs read" in output
    assert "The memory of a GPU ran out (proven)\n   worker-0.log:1:" in output


def test_the_log_of_a_container_before_its_restart_is_read(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    pod = cluster.objects[f"{PODS}/train-0"]
    cluster.write(cluster.run("train-0", restarts=1), b"starting again\n")
    status = cluster.objects[f"{PODS}/train-0"]["status"]
    cluster.put(f"{PODS}/train-0", metadata=pod["metadata"], spec=pod["spec"], status=status)
    _, output = shown(capsys, "train")
    assert "The memory of a GPU ran out (proven)\n   worker-0.previous.log:1:" in output


def test_only_the_newest_attempt_of_a_stage_counts(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    labels = {"kubetrain/run-id": "nightly"}
    done = [{"type": "Complete", "status": "True"}]
    later = "2027-01-01T00:00:00Z"
    cluster.put(
        f"{JOBS}/train-a2",
        metadata={"labels": labels, "creationTimestamp": later},
        spec={"template": {}},
        status={"conditions": done},
    )
    assert shown(capsys, "nightly") == (0, "job train-a2: succeeded, 0 logs read\n\nnothing is wrong\n")


def test_what_may_not_be_read_is_named(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    denied = 'events is forbidden: User "me" cannot list resource "events" in API group "" in the namespace "tests"'
    cluster.fail("GET /api/v1/namespaces/tests/events", lambda handler: handler.refuse(403, denied) or True)
    jobs = 'pytorchjobs is forbidden: User "me" cannot list resource "pytorchjobs"'
    cluster.serve("kubeflow.org/v1", "pytorchjobs")
    cluster.fail("/pytorchjobs", lambda handler: handler.refuse(403, jobs) or True)
    code, output = shown(capsys, "train")
    assert "could not be read: events: me may not list events in the namespace tests" in output
    assert "pytorchjobs" not in output, "the job is of another kind"
    assert code == 1


def test_a_node_under_pressure_is_evidence(cluster: ApiServer, capsys: pytest.CaptureFixture[str]) -> None:
    pressure = {"type": "DiskPressure", "status": "True", "message": "kubelet has disk pressure"}
    cluster.put("/api/v1/nodes/node-1", status={"conditions": [pressure]})
    assert "(likely)\n   node node-1:\n     NodeHasDiskPressure: kubelet has disk pressure" in shown(capsys, "train")[1]


def test_a_name_that_does_not_exist_is_an_error(cluster: ApiServer) -> None:
    with pytest.raises(KubetrainError, match="namespace tests has no job or run named 'nosuch'"):
        diagnose_and_show(DiagnoseOptions(targets=["nosuch"]))


def test_a_job_is_found_beside_a_kubeflow_pipelines_that_refuses(
    cluster: ApiServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with KfpServer() as pipelines:
        pipelines.token = "another"
        assert shown(capsys, "train", endpoint=pipelines.endpoint)[1].startswith("job train: failed, 1 log read")
        with pytest.raises(KubetrainError, match="authentication failed"):
            shown(capsys, "nosuch", endpoint=pipelines.endpoint)


def test_a_job_on_this_machine_is_read_from_its_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    failing = job(script(f"print('{OOM}'); exit(1)"), policy=RestartPolicy.NEVER)
    with LocalBackend(tmp_path / ".jobs") as backend:
        handle = backend.create(failing)
        states = backend.watch(handle)
        while (state := next(states)) is not None and not state.is_over:
            pass
    (tmp_path / "run-1").mkdir()
    for target in (tmp_path, tmp_path / "run-1", tmp_path / ".jobs" / handle.name):
        code, output = shown(capsys, target)
        assert output.startswith(f"job {handle.name}: failed, 1 log read\n\n1. The memory of a GPU ran out (proven)")
        assert code == 1


def test_a_job_that_its_launcher_ended_keeps_its_logs_until_it_runs_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    restarting = job(script(f"print('{OOM}'); exit(1)"), policy=RestartPolicy.ALWAYS)
    with LocalBackend(tmp_path / ".jobs") as backend:
        handle = backend.create(restarting)
        log = tmp_path / ".jobs" / handle.name / "chief-0.log"
        while not log.read_text():
            time.sleep(0.01)
        backend.fail(handle, "it restarted too often")
        code, output = shown(capsys, tmp_path)
        assert backend.find(restarting) is None
        assert [pod.phase for each in read_local(tmp_path).jobs for pod in each.state.pods] == [Phase.FAILED]
        assert output.startswith(f"job {handle.name}.failed: failed, 1 log read\n\n1. The memory of a GPU ran out")
        assert code == 1
        (tmp_path / "run-1").mkdir()
        assert shown(capsys, tmp_path / "run-1")[0] == 1
        backend.create(restarting)
        assert shown(capsys, tmp_path)[1].startswith(f"job {handle.name}: running, 1 log read")
    (tmp_path / "other-run").mkdir()
    with pytest.raises(InvalidSetting, match="no longer has the job of run other-run"):
        diagnose_and_show(DiagnoseOptions(targets=[str(tmp_path / "other-run")]))


def test_a_job_whose_launcher_was_killed_has_failed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / ".jobs").mkdir()
    record = LocalRecord(tmp_path / ".jobs" / "train-1")
    record.create(job(script("")), JobHandle(kind=JobKind.TF_JOB, name="train-1", uid="u"))
    assert not read_local(tmp_path).is_over
    created = json.loads((record.path / "job.json").read_text())
    (record.path / "job.json").write_text(json.dumps({**created, "owner": DEAD}))
    assert read_local(tmp_path).is_over
    assert read_local(tmp_path).failure.startswith("failed: ")
    code, output = shown(capsys, tmp_path)
    assert output.startswith("job train-1: failed, 0 logs read")
    assert "its launcher was killed, and its pods ended with it" in " ".join(output.split())
    assert code == 1


def test_a_workspace_has_the_error_of_its_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    error = "S3 at http://127.0.0.1:1 rejected the credentials for s3://bucket/data (ExpiredToken): renew them"
    record = {"schema": RECORD_SCHEMA, "run_id": "r-1", "status": "failed", "error": error}
    (tmp_path / "run.json").write_text(json.dumps(record))
    code, output = shown(capsys, tmp_path)
    assert output.startswith("run r-1: failed, 0 logs read\n\n1. The credentials are invalid or expired (proven)")
    assert code == 1


def test_a_job_that_was_killed_because_its_run_was_stopped_has_no_failure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    killed = job(script("import os; os.kill(os.getpid(), 9)"), run_id="r-1", policy=RestartPolicy.NEVER)
    with LocalBackend(tmp_path / "jobs") as backend:
        states = backend.watch(backend.create(killed))
        while (state := next(states)) is not None and not state.is_over:
            pass
    for status, code in (("failed", 1), ("stopped", 0)):
        record = {"schema": RECORD_SCHEMA, "run_id": "r-1", "status": status, "error": ""}
        (tmp_path / "run.json").write_text(json.dumps(record))
        assert shown(capsys, tmp_path)[0] == code


NO_ERROR = {"schema": RECORD_SCHEMA, "pipeline": "train-pytorch", "run_id": "", "error": "", "started": 1.0}
RUN = {**NO_ERROR, "status": "running"}
BEGUN = {"event": "started", "stage": "sync_dataset", "time": 1.0, "run_id": "r-1"}


@pytest.mark.parametrize(
    ("changes", "says", "code"),
    [
        ({"owner": this_process()}, "run r-1: running, 0 logs read\n\nnothing is wrong so far\n", 0),
        ({"owner": DEAD}, "1. The command that ran it was killed", 1),
        ({"status": "stopped"}, "run r-1: stopped, 0 logs read\n\nnothing is wrong: it was stopped by Ctrl-C", 0),
    ],
)
def test_a_run_that_has_no_failure_of_its_own(
    changes: dict[str, object], says: str, code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before its end, the record has no ID, which is in the events."""
    (tmp_path / "run.json").write_text(json.dumps(RUN | changes))
    (tmp_path / "events.jsonl").write_text(json.dumps(BEGUN) + "\n")
    ended, output = shown(capsys, tmp_path)
    assert says in output
    assert ended == code


def test_the_error_of_a_stage_is_not_lost_if_the_run_is_killed_after_it(tmp_path: Path) -> None:
    failed = {**BEGUN, "event": "failed", "time": 2.0, "error": OOM}
    (tmp_path / "run.json").write_text(json.dumps({**RUN, "owner": DEAD}))
    (tmp_path / "events.jsonl").write_text(f"{json.dumps(BEGUN)}\n{json.dumps(failed)}\n")
    assert read_local(tmp_path).failure == f"failed: {OOM}"


BROKEN = [
    json.dumps({name: value for name, value in RUN.items() if name != "run_id"}),
    json.dumps({**RUN, "owner": {"pid": "a", "started": 1}}),
    json.dumps({**RUN, "status": "elsewhere"}),
]


@pytest.mark.parametrize("content", ["", '{"run_id": "x"', "[]", '{"run_id": "of another program"}', *BROKEN])
def test_a_file_that_only_looks_like_the_record_of_a_run_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(content)
    with pytest.raises(InvalidSetting, match=r"run\.json was not written by `kubetrain run`"):
        diagnose_and_show(DiagnoseOptions(targets=[str(tmp_path)]))
    with pytest.raises(InvalidSetting, match=r"run\.json was not written by `kubetrain run`"):
        read_local(tmp_path)


def test_a_run_in_kubeflow_pipelines_is_read_with_the_logs_of_its_failed_steps(
    capsys: pytest.CaptureFixture[str],
) -> None:
    failed = Step(task="launch-training", state="FAILED")
    with kfp_without_cluster() as server:
        run = server.add("runs", workflow([Step(task="sync-dataset"), failed], "FAILED"))["run_id"]
        server.logs[failed.pods()[0]] = (
            f"[worker-0] {OOM}\nerror: launch_training failed: worker-0 exited with code 1\n"
        )
        code, output = shown(capsys, run, endpoint=server.endpoint)
    assert output.startswith(f"run {run} (x): failed, 1 log read\n\n1. The memory of a GPU ran out (proven)")
    assert "could not be read: jobs: " in output
    assert code == 1


def test_a_run_without_failed_steps_is_read_with_the_logs_of_all(capsys: pytest.CaptureFixture[str]) -> None:
    slow = Step(task="launch-training")
    with kfp_without_cluster() as server:
        run = server.add("runs", workflow([slow], "SUCCEEDED"))["run_id"]
        server.logs[slow.pods()[0]] = "the training waits for data 62% of the time: give each pod more CPUs\n"
        code, output = shown(capsys, run, endpoint=server.endpoint)
    assert output.startswith(f"run {run} (x): succeeded, 1 log read\n\n1. Training waits for its data (slow)")
    assert code == 0
