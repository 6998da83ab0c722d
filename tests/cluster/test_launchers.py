"""The contract of a training's job, whatever runs its pods: an operator of either version, or Kubernetes alone."""

import contextlib
import os
import signal
from typing import Any

import pytest

from kubetrain_components.jobs.annotations import FAILURE_ANNOTATION, VERDICT_ANNOTATION
from kubetrain_components.jobs.follow import create_or_attach, run_job
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.kubernetes.errors import UnknownKind
from kubetrain_components.jobs.kubernetes.manifests.indexed_job import INSTANCE_LABEL
from kubetrain_components.jobs.kubernetes.manifests.job_manifest import companion_resource
from kubetrain_components.jobs.kubernetes.served import is_served
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from support.cluster import FOREVER, Launched, await_that
from support.following import Heard, evict, failure_of, once_running, training_job

pytestmark = [pytest.mark.cluster, pytest.mark.core]

MEET = """
import os, socket, time
rank, host, port = (os.environ["PET_" + name] for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"))
if rank == "0":
    server = socket.create_server(("", int(port)))
    print("met", server.accept()[0].recv(9).decode(), "of", os.environ["PET_NNODES"])
else:
    while True:
        try:
            socket.create_connection((host, int(port)), 5).sendall(b"rank " + rank.encode())
            break
        except OSError:
            time.sleep(0.2)
"""
MEET_BY_TF_CONFIG = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], config["cluster"]
lead = (cluster.get("chief") or cluster["worker"])[0]
host, port = lead.split(":")
own = cluster[task["type"]][task["index"]]
if own == lead:
    server = socket.create_server(("", int(port)))
    print("met", server.accept()[0].recv(200).decode())
else:
    while True:
        try:
            socket.create_connection((host, int(port)), 5).sendall(own.encode())
            break
        except OSError:
            time.sleep(0.2)
"""
FAIL = """
import os, time
if os.environ["PET_NODE_RANK"] == "0":
    time.sleep(3600)
print("about to fail")
raise SystemExit(3)
"""
COUNTING = "import time\nfor i in range(40): print('line', i, flush=True); time.sleep(0.25)"
COME_AGAIN = """
import os, socket, time
rank, host, port = (os.environ["PET_" + name] for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"))
if rank == "0":
    server = socket.create_server(("", int(port)))
    for visit in b"12":
        server.accept()[0].sendall(bytes([visit]))
while rank != "0":
    try:
        if socket.create_connection((host, int(port)), 5).recv(1) == b"1":
            time.sleep(3600)
        break
    except OSError:
        time.sleep(0.2)
"""


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest, api: KubernetesApi) -> Launcher:
    wanted = Launcher(request.param)
    if not is_served(api, wanted.kind("pytorch").traits.resource):
        pytest.skip(f"the cluster has no {wanted.kind('pytorch')}: ../shared/cluster/add trainer")
    return wanted


def companions(api: KubernetesApi) -> list[dict[str, Any]]:
    """Return the objects beside jobs that no operator made."""
    found: list[dict[str, Any]] = []
    for resource in {companion_resource(kind) for kind in (JobKind.TRAIN_JOB, JobKind.BATCH_JOB)}:
        with contextlib.suppress(UnknownKind):
            listed = api.get(api.path(*resource), labelSelector=INSTANCE_LABEL)
            found += (listed or {}).get("items") or []
    return found


def running_pods(api: KubernetesApi) -> list[str]:
    pods = (api.get(api.path("v1", "pods")) or {})["items"]
    return [pod["metadata"]["name"] for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]


class TestContract:
    @pytest.mark.parametrize(("framework", "program"), [("pytorch", MEET), ("tensorflow", MEET_BY_TF_CONFIG)])
    def test_its_pods_find_each_other_and_all_succeed(
        self, launcher: Launcher, backend: KubernetesBackend, framework: str, program: str
    ) -> None:
        heard = Heard()
        job = training_job(launcher, program, "meets", framework)
        state = run_job(job, backend, heard)
        assert [line.split()[0] for line in heard.of(job.lead) if "met" in line] == ["met"]
        assert state.phase is Phase.SUCCEEDED
        assert [pod.phase for pod in state.pods] == [Phase.SUCCEEDED] * 2
        again = run_job(job, backend, heard)
        assert (again.handle, again.annotations[VERDICT_ANNOTATION]) == (state.handle, "succeeded")

    def test_what_is_beside_the_job_belongs_to_it(
        self, launcher: Launcher, backend: KubernetesBackend, api: KubernetesApi
    ) -> None:
        handle = backend.create(training_job(launcher, "pass", "owned"))
        owners = [owner["uid"] for each in companions(api) for owner in each["metadata"]["ownerReferences"]]
        assert owners == ([] if launcher is Launcher.TRAINING_OPERATOR else [handle.uid])

    def test_a_pod_that_fails_is_named_and_no_pod_is_left(
        self, launcher: Launcher, backend: KubernetesBackend, api: KubernetesApi
    ) -> None:
        job = training_job(launcher, FAIL, "fails")
        error = failure_of(job, backend)
        culprit = "worker-0" if launcher is Launcher.TRAINING_OPERATOR else "worker-1"
        assert f"{culprit} exited with code 3" in str(error)
        assert "about to fail" in error.log_tail
        await_that(lambda: not running_pods(api))
        found = backend.find(job)
        assert found is not None
        assert (found.phase, found.annotations[VERDICT_ANNOTATION]) == (Phase.FAILED, "failed")

    def test_a_training_that_restarts_too_often_stays_as_a_failed_job_without_pods(
        self, launcher: Launcher, backend: KubernetesBackend, api: KubernetesApi
    ) -> None:
        job = training_job(launcher, FAIL, "again", placement={"restart_policy": "OnFailure", "max_restarts": 1})
        assert "exited with code 3" in str(failure_of(job, backend))
        found = backend.find(job)
        assert found is not None
        assert found.phase is Phase.FAILED
        assert "no restarts are left" in found.annotations[FAILURE_ANNOTATION]
        await_that(lambda: not running_pods(api))

    def test_a_launch_that_is_cancelled_leaves_nothing(
        self, launcher: Launcher, namespace: str, backend: KubernetesBackend, api: KubernetesApi
    ) -> None:
        job = training_job(launcher, FOREVER, "cancelled")

        def cancel(*unused: object) -> None:
            os.kill(os.getpid(), signal.SIGINT)

        with pytest.raises(KeyboardInterrupt), once_running(api, job, cancel):
            run_job(job, backend, Heard())
        assert backend.find(job) is None
        await_that(lambda: not companions(api), seconds=5)
        await_that(lambda: not running_pods(api))

    def test_sigterm_deletes_the_job_within_five_seconds(
        self, launcher: Launcher, namespace: str, backend: KubernetesBackend
    ) -> None:
        job = training_job(launcher, FOREVER, "stopped")
        launched = Launched(namespace, job)
        launched.await_line(f"[{job.lead}] up")
        assert backend.find(job)
        launched.process.send_signal(signal.SIGTERM)
        await_that(lambda: backend.find(job) is None, seconds=5)
        launched.rest()
        assert launched.process.returncode != 0

    def test_a_killed_launcher_finds_its_job_again(
        self, launcher: Launcher, namespace: str, backend: KubernetesBackend
    ) -> None:
        job = training_job(launcher, COUNTING, "killed")
        first = Launched(namespace, job)
        first.await_line(f"[{job.lead}] line 8")
        first.process.send_signal(signal.SIGKILL)
        first.process.wait()
        found = backend.find(job)
        assert found is not None
        heard = Heard()
        assert run_job(job, backend, heard).handle == found.handle
        assert heard.of(job.lead)[-1] == "line 39"

    def test_an_evicted_worker_is_replaced(
        self, launcher: Launcher, backend: KubernetesBackend, api: KubernetesApi
    ) -> None:
        job = training_job(launcher, COME_AGAIN, "evicted", placement={"restart_policy": "OnFailure"})
        heard = Heard()
        with once_running(api, job, evict):
            state = run_job(job, backend, heard)
        assert {pod.phase for pod in state.pods} == {Phase.SUCCEEDED}
        assert len(state.pods) == 2

    def test_auto_stays_with_the_launcher_of_a_job_that_exists(
        self, launcher: Launcher, backend: KubernetesBackend
    ) -> None:
        job = training_job(launcher, FOREVER, "stays")
        auto = backend.launcher(Launcher.AUTO, "pytorch", job.identity)
        assert auto[0] is Launcher.TRAINING_OPERATOR
        handle = backend.create(job)
        assert backend.launcher(Launcher.AUTO, "pytorch", job.identity)[0] is launcher
        assert create_or_attach(job, backend) == handle

    def test_a_quota_that_keeps_pods_away_is_named(
        self, launcher: Launcher, backend: KubernetesBackend, api: KubernetesApi
    ) -> None:
        quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "one"}}
        api.create(api.path("v1", "resourcequotas"), {**quota, "spec": {"hard": {"pods": 1}}})
        error = failure_of(training_job(launcher, FOREVER, "quota", placement={"start_seconds": 8}), backend)
        assert "the namespace's quota is used up" in str(error)

    def test_no_restart_follows_a_permanent_failure_under_exit_code(
        self, launcher: Launcher, backend: KubernetesBackend
    ) -> None:
        error = failure_of(training_job(launcher, FAIL, "permanent", placement={"restart_policy": "ExitCode"}), backend)
        assert "exited with code 3" in str(error)
        assert "restart" not in str(error)
