"""Whole launches on the hostile API server, with a clock that the test sets: nothing healthy is ended."""

import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs import following
from kubetrain_components.jobs.annotations import AVOIDED_NODES_ANNOTATION, VERDICT_ANNOTATION
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import JobState
from kubetrain_components.jobs.kubernetes import backend as backends
from kubetrain_components.jobs.kubernetes import followed, watched
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.pod_checks import REQUIRED
from kubetrain_components.jobs.verdict import has_lost_proof
from support.api_server import PODS, ApiServer, answer
from support.manifests import batch, elastic, pytorch, tensorflow

TRAINING = "/apis/kubeflow.org/v1/namespaces/tests/"
PROOF = '{"status": "completed", "step": 9, "checkpoint": "step-9", "manifest_sha256": "abc"}'
TAKEN = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "preempted"}
NO_ROOM = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no node takes it"}


class Launch:
    """A launcher in a thread, and what the operator and the kubelets do."""

    def __init__(self, server: ApiServer, job: Job) -> None:
        self.server, self.job = server, job
        plural = job.kind.traits.plural
        group = TRAINING if job.kind.traits.framework else "/apis/batch/v1/namespaces/tests/"
        self.path = f"{group}{plural}/{job.identity.name}"
        self.lines: list[str] = []
        self.outcome: list[object] = []
        self._now, self._reads = 0.0, 0
        self._read = threading.Condition()
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with KubernetesBackend(KubernetesApi.connect(retry_seconds=60)) as backend:
            try:
                done = run_job(self.job, backend, lambda line: self.lines.append(line.text), clock=self._clock)
                self.outcome.append(done)
            except BaseException as error:  # noqa: BLE001 - the test looks at it
                self.outcome.append(error)
        with self._read:
            self._read.notify_all()

    def _clock(self) -> float:
        with self._read:
            self._reads += 1
            self._read.notify_all()
            return self._now

    def advance(self, seconds: float) -> None:
        """Let time pass between two looks of the launcher at the job."""
        for part in (0.0, seconds):
            with self._read:
                self._now += part
                enough = self._reads + 8
                assert self._read.wait_for(lambda end=enough: self._reads >= end or self.outcome, 60)

    def await_that(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + 60
        while not condition():
            assert time.monotonic() < end
            time.sleep(0.01)

    def condition(self, name: str, message: str = "") -> None:
        known = self.server.objects[self.path]
        status = {"conditions": [{"type": name, "status": "True", "message": message}]}
        self.server.put(self.path, **{**known, "status": status})

    def pod(self, name: str, phase: str = "Running", restarts: int = 0, **status: Any) -> None:
        """Create or change a pod, such as worker-1."""
        role, _, index = name.rpartition("-")
        traits = self.job.kind.traits
        labels = {traits.job_name_label: self.job.identity.name, "kubetrain/role": role}
        if traits.framework:
            labels |= {"training.kubeflow.org/replica-type": role, "training.kubeflow.org/replica-index": index}
        owner = {"uid": self.server.objects[self.path]["metadata"]["uid"]}
        container = {"name": traits.container, "restartCount": restarts, "state": {"running": {}}, "image": "i"}
        self.server.put(
            f"{PODS}/{self.job.identity.name}-{name}",
            metadata={"labels": labels, "ownerReferences": [owner]},
            spec={"containers": [{"name": traits.container}], "restartPolicy": "OnFailure"},
            status={"phase": phase, "containerStatuses": [container] if phase == "Running" else [], **status},
        )

    def remove_pod(self, name: str) -> None:
        self.server.remove(f"{PODS}/{self.job.identity.name}-{name}")

    def end(self, name: str, code: int = 0, words: str = "", phase: str = "", **status: Any) -> None:
        ended = {"exitCode": code, "message": words, "finishedAt": "2026-11-22T00:00:30Z"}
        container = {"name": self.job.kind.traits.container, "state": {"terminated": ended}}
        phase = phase or ("Failed" if code else "Succeeded")
        self.pod(name, phase, **{"containerStatuses": [container], **status})

    def succeed(self) -> JobState:
        for pod in self.job.pods():
            self.end(pod.name, words=PROOF)
        self.condition("Succeeded")
        return self.state()

    def state(self) -> JobState:
        """Return the state that the launcher accepts as a success."""
        self.await_that(lambda: bool(self.outcome))
        assert isinstance(self.outcome[0], JobState), self.outcome[0]
        return self.outcome[0]

    def error(self) -> str:
        self.await_that(lambda: bool(self.outcome))
        assert isinstance(self.outcome[0], Exception), self.outcome[0]
        return str(self.outcome[0])


@pytest.fixture
def launch(server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Job], Launch]]:
    monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
    monkeypatch.setattr(followed, "HEARTBEAT_SECONDS", 0.02)
    monkeypatch.setattr(watched, "MIN_ROUND_SECONDS", 0.05)
    monkeypatch.setattr(backends, "FAIL_SECONDS", 0.1)  # there is no operator
    monkeypatch.setattr(following, "DRAIN_SECONDS", 0.1)
    monkeypatch.setattr(following, "LAST_LINES_SECONDS", 0.1)
    made: list[Launch] = []

    def start(job: Job) -> Launch:
        started = Launch(server, job)
        made.append(started)
        started.thread.start()
        started.await_that(lambda: started.path in server.objects)
        return started

    yield start
    server.objects.clear()
    server.forget()
    for each in made:
        deadline = time.monotonic() + 60
        while each.thread.is_alive() and time.monotonic() < deadline:
            if server.objects:  # a creation was sent again, because forget() cut its answer
                server.objects.clear()
                server.forget()
            each.thread.join(0.1)
        assert not each.thread.is_alive()


def running(launched: Launch) -> Launch:
    for pod in launched.job.pods():
        launched.pod(pod.name)
    launched.condition("Running")
    launched.advance(60)
    return launched


def test_an_elastic_job_trains_for_days_with_a_pod_that_no_node_takes(launch: Callable[[Job], Launch]) -> None:
    launched = running(launch(elastic()))
    launched.remove_pod("worker-2")
    launched.pod("worker-2", "Pending", conditions=[NO_ROOM])
    for _ in range(3):
        launched.advance(86400)
    (line,) = [line for line in launched.lines if "cannot be scheduled" in line]
    assert "training continues, and this pod joins later" in line
    launched.pod("worker-2")
    launched.succeed()


def test_pods_may_be_replaced_again_and_again(launch: Callable[[Job], Launch]) -> None:
    launched = running(launch(pytorch()))
    for number in range(5):
        launched.pod("worker-1", conditions=[TAKEN])
        launched.remove_pod("worker-1")
        for other in ("master-0", "worker-0"):
            launched.pod(other, restarts=number + 1)
        launched.pod("worker-1", "Pending", conditions=[NO_ROOM])
        launched.advance(1700)
        launched.pod("worker-1")
        launched.advance(60)
    launched.succeed()


def test_a_registry_may_be_down_once_the_job_has_trained(launch: Callable[[Job], Launch]) -> None:
    launched = running(launch(pytorch()))
    launched.remove_pod("worker-1")
    waiting = {"reason": "ImagePullBackOff", "message": "429 toomanyrequests"}
    container = {"name": "pytorch", "image": "i", "state": {"waiting": waiting}}
    launched.pod("worker-1", "Pending", containerStatuses=[container])
    launched.advance(1700)
    assert any("toomanyrequests" in line for line in launched.lines)
    launched.pod("worker-1")
    launched.advance(1)
    launched.succeed()


def test_an_image_that_does_not_exist_still_fails_a_job_that_never_trained(launch: Callable[[Job], Launch]) -> None:
    launched = launch(pytorch())
    waiting = {"reason": "ErrImagePull", "message": "not found"}
    container = {"name": "pytorch", "image": "i", "state": {"waiting": waiting}}
    for pod in launched.job.pods():
        launched.pod(pod.name, "Pending", containerStatuses=[container])
    launched.advance(1)
    launched.advance(121)
    assert "image cannot be pulled" in launched.error()


def test_a_training_that_succeeded_unseen_and_without_pods_is_not_called_failed(
    launch: Callable[[Job], Launch],
) -> None:
    launched = launch(pytorch())
    launched.condition("Succeeded", "PyTorchJob j is successfully completed.")
    assert has_lost_proof(launched.job, launched.state())
    annotations = launched.server.objects[launched.path]["metadata"]["annotations"]
    assert annotations[VERDICT_ANNOTATION] == "succeeded"


@pytest.mark.parametrize("make", [pytorch, batch])
def test_a_sidecar_that_never_ends_is_named_and_ended(launch: Callable[[Job], Launch], make: Callable[[], Job]) -> None:
    launched = running(launch(make()))
    traits = launched.job.kind.traits
    done = {"exitCode": 0, "message": PROOF, "finishedAt": "2026-11-22T00:00:30Z"}
    statuses = [
        {"name": "vault-agent", "state": {"running": {}}},
        {"name": traits.container, "state": {"terminated": done}},
    ]
    for pod in launched.job.pods():
        launched.pod(pod.name, containerStatuses=statuses)
    launched.advance(100)
    launched.advance(30)
    launched.state()
    assert sum("waiting" in line and "vault-agent" in line for line in launched.lines) == 1
    assert launched.path not in launched.server.objects


def test_a_cluster_that_takes_a_pod_while_the_pods_watch_is_down_is_known_by_its_cause(
    launch: Callable[[Job], Launch],
) -> None:
    launched = running(launch(tensorflow()))
    server = launched.server
    server.fail(f"GET {PODS}?labelSelector=training.kubeflow.org%2Fjob-name", answer(429, "busy", Retry_After="3"), 1)
    server.cut_all()
    launched.await_that(lambda: not server._faults)
    launched.end("worker-1", 143, phase="Failed", conditions=[{**TAKEN, "reason": "EvictionByEvictionAPI"}])
    launched.condition("Failed", "TFJob j is failing because 1 Worker replica(s) failed.")
    launched.await_that(lambda: any("was evicted" in line for line in launched.lines) or bool(launched.outcome))
    assert not launched.outcome, "the job is retried"
    again = replace(launched.job, identity=launched.job.identity.next_attempt())
    for name in ("chief-0", "worker-0"):
        launched.end(name, 1)
    path = launched.path.replace(launched.job.identity.name, again.identity.name)
    launched.await_that(lambda: path in server.objects)


def test_a_training_on_a_bad_node_is_failed_at_once_and_starts_again_elsewhere(
    launch: Callable[[Job], Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "FAIL_SECONDS", 60.0)
    launched = running(launch(pytorch()))
    words = {"status": "failed", "error": "bad nodes: node-1", "curable": False, "avoid_nodes": ["node-1"]}
    launched.end("worker-0", 1, json.dumps(words), phase="Running")  # the kubelet is about to restart it
    objects = launched.server.objects
    launched.await_that(lambda: VERDICT_ANNOTATION in objects[launched.path]["metadata"]["annotations"])
    assert objects[launched.path]["metadata"]["annotations"][AVOIDED_NODES_ANNOTATION] == "node-1"
    launched.condition("Failed")
    for pod in launched.job.pods():
        launched.end(pod.name, 143)
    second = f"{launched.path}-a2"
    launched.await_that(lambda: second in objects)
    spec = objects[second]["spec"]["pytorchReplicaSpecs"]["Master"]["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"][REQUIRED]["nodeSelectorTerms"]
    assert term == {"matchFields": [{"key": "metadata.name", "operator": "NotIn", "values": ["node-1"]}]}
    assert any("bad nodes: node-1; the job restarts without node-1" in line for line in launched.lines)


def test_a_success_while_the_pods_watch_is_down_is_proven_by_a_list(launch: Callable[[Job], Launch]) -> None:
    launched = launch(batch())
    server = launched.server
    launched.advance(1)
    server.fail("job-name%3D", answer(429, "busy", Retry_After="3"), 1)
    server.cut_all()
    launched.await_that(lambda: not server._faults)
    name = launched.job.identity.name
    launched.succeed()
    assert not [path for path in server.objects if path.endswith(f"{name}-a2")]


def test_a_job_that_starts_while_the_api_server_is_away_is_not_ended(
    launch: Callable[[Job], Launch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "CUT_OFF_SECONDS", 0.0)
    launched = launch(batch())
    launched.pod("evaluation-0", "Pending")
    launched.advance(60)
    launched.server.refuse()
    launched.pod("evaluation-0")
    with launched._read:
        launched._now += 86400
    launched.server.listen()
    launched.advance(60)
    launched.succeed()
