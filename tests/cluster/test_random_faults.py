"""Real launches while everything around them fails at random: each ends with the right verdict.

KUBETRAIN_FAULT_SECONDS sets the duration, KUBETRAIN_FAULT_SEED repeats the choices of an earlier run.
"""

import os
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job, RestartPolicy
from kubetrain_components.jobs.job_state import JobState, LogLine
from kubetrain_components.jobs.kubernetes.access.connection import Material, User
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import JOB_RETRY_SECONDS, KubernetesBackend
from kubetrain_components.jobs.verdict import JobFailed
from support.cluster import FOREVER, pods_job
from support.fault_proxy import FaultProxy
from support.following import batch_job, worker_job

pytestmark = pytest.mark.cluster

SECONDS = float(os.environ.get("KUBETRAIN_FAULT_SECONDS", "60"))
SEED = int(os.environ.get("KUBETRAIN_FAULT_SEED", str(random.randrange(10**6))))
FAULTY_SHARE = 0.15
LAUNCHES_AT_ONCE = 3
OPERATOR = "/apis/apps/v1/namespaces/kubeflow/deployments/training-operator"
OPERATOR_AWAY_SECONDS, OPERATOR_BACK_SECONDS = 15.0, 45.0
LINES = 40
TALK = f"import time\nfor number in range({LINES}): print('line', number); time.sleep(0.2)"
CRASH = "import sys, time; time.sleep(4); print('about to'); sys.exit(3)"
HUNGRY = "import time; time.sleep(2); hoard = [bytearray(1 << 20) for _ in range(500)]; time.sleep(5)"
ERROR = "the dataset has no folder 'val'"
REPORT = f"""
import json, sys, time
time.sleep(3)
open('/dev/termination-log', 'w').write(json.dumps(dict(status='failed', error={ERROR!r}, curable=False)))
sys.exit(1)
"""


@dataclass(frozen=True)
class Scenario:
    make: Callable[[str], Job]
    cause: str = ""
    """Text of the failure; empty: the job succeeds."""
    loses_a_pod: bool = False


def _named(job: Job, run_id: str) -> Job:
    return replace(job, identity=replace(job.identity, run_id=run_id))


SCENARIOS = {
    "TFJob succeeds": Scenario(lambda run: pods_job(TALK, TALK, run_id=run)),
    "Job succeeds": Scenario(lambda run: batch_job(TALK, run)),
    "TFJob's worker crashes": Scenario(lambda run: pods_job(FOREVER, CRASH, run_id=run), "worker-0 exited with code 3"),
    "Job reports an error": Scenario(lambda run: batch_job(REPORT, run), ERROR),
    "Job runs out of memory": Scenario(lambda run: batch_job(HUNGRY, run, RestartPolicy.NEVER), "ran out of memory"),
    "PyTorchJob loses a pod": Scenario(lambda run: _named(worker_job(TALK), run), loses_a_pod=True),
    "TFJob loses a pod": Scenario(lambda run: pods_job(TALK, TALK, run_id=run), loses_a_pod=True),
}


class Launches:
    """Launches one after the other in each of several threads, until time is up."""

    def __init__(self, api: KubernetesApi, proxy: FaultProxy, server: str) -> None:
        self.right: Counter[str] = Counter()
        self.wrong: list[str] = []
        self.lost_lines = self.repeated_lines = 0
        self._api, self._proxy, self._server = api, proxy, server
        self._random = random.Random(SEED)
        self._until = time.monotonic() + SECONDS
        self._threads = [threading.Thread(target=self._work, args=(each,)) for each in range(LAUNCHES_AT_ONCE)]

    def run(self) -> None:
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _work(self, worker: int) -> None:
        number = 0
        while time.monotonic() < self._until:
            number += 1
            name = self._random.choice(sorted(SCENARIOS))
            self._launch(name, f"{worker}-{number}")

    def _launch(self, name: str, run_id: str) -> None:
        scenario, lines = SCENARIOS[name], list[LogLine]()
        job = scenario.make(run_id)
        user = User(token=Material(run_id.encode()))
        api = KubernetesApi(replace(self._api.connection, server=self._server, user=user), self._api.namespace)
        with KubernetesBackend(api, JOB_RETRY_SECONDS) as backend, self._losing(scenario, job):
            try:
                outcome: object = run_job(job, backend, lines.append)
            except Exception as error:  # noqa: BLE001 - judged below
                outcome = error
        self._judge(name, scenario, run_id, outcome)
        if scenario.make(run_id).replicas[0].command[-1] == TALK and not scenario.loses_a_pod:
            self._count_lines(job, lines)
        with suppress(Exception):
            self._api.delete(self._api.path(*job.kind.traits.resource, job.identity.name))

    def _judge(self, name: str, scenario: Scenario, run_id: str, outcome: object) -> None:
        is_failure = isinstance(outcome, JobFailed) and scenario.cause in str(outcome)
        if is_failure if scenario.cause else isinstance(outcome, JobState):
            self.right[name] += 1
            print(f"{name} ({run_id}): right", flush=True)
        else:
            self.wrong.append(f"{name} ({run_id}): {type(outcome).__name__}: {outcome}")
            print(f"WRONG: {self.wrong[-1]}", flush=True)

    def _count_lines(self, job: Job, lines: list[LogLine]) -> None:
        heard = Counter((line.pod, line.text) for line in lines)
        pods = [f"{pod.role.lower()}-{pod.index}" for pod in job.pods()]
        counts = [heard[pod, f"line {number}"] for pod in pods for number in range(LINES)]
        self.lost_lines += counts.count(0)
        self.repeated_lines += sum(max(count - 1, 0) for count in counts)

    @contextmanager
    def _losing(self, scenario: Scenario, job: Job) -> Iterator[None]:
        """Evict the job's first running pod, once."""
        is_over = threading.Event()
        thread = threading.Thread(target=self._evict, args=(job, is_over))
        if scenario.loses_a_pod:
            thread.start()
        try:
            yield
        finally:
            is_over.set()
            if scenario.loses_a_pod:
                thread.join()

    def _evict(self, job: Job, is_over: threading.Event) -> None:
        of_job = f"{job.kind.traits.job_name_label}={job.identity.name}"
        while not is_over.wait(0.5):
            with suppress(Exception):
                pods = self._api.get(self._api.path("v1", "pods"), labelSelector=of_job) or {"items": []}
                running = [pod for pod in pods["items"] if pod["status"]["phase"] == "Running"]
                if len(running) == job.total_replicas and not is_over.wait(2):
                    name = running[0]["metadata"]["name"]
                    metadata = {"name": name, "namespace": self._api.namespace}
                    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
                    self._api.create(self._api.path("v1", "pods", f"{name}/eviction"), eviction)
                    return


@contextmanager
def operator_leaving_now_and_then(api: KubernetesApi) -> Iterator[Counter[str]]:
    """Scale the training operator, and its webhook with it, to nothing and back."""
    is_over, times = threading.Event(), Counter[str]()

    def scale(replicas: int) -> None:
        api.patch(OPERATOR, {"spec": {"replicas": replicas}})

    def leave_and_return() -> None:
        while not is_over.wait(OPERATOR_BACK_SECONDS):
            times["away"] += 1
            scale(0)
            is_over.wait(OPERATOR_AWAY_SECONDS)
            scale(1)

    thread = threading.Thread(target=leave_and_return)
    thread.start()
    try:
        yield times
    finally:
        is_over.set()
        thread.join()
        scale(1)


@pytest.mark.timeout(SECONDS + 900)
def test_no_random_fault_makes_a_verdict_wrong(namespace: str) -> None:
    print(f"seed {SEED}, {SECONDS:.0f} s")
    api, proxy = KubernetesApi.connect(namespace), FaultProxy(Path(os.environ["KUBECONFIG"]), SEED, FAULTY_SHARE)
    with proxy.serving() as server, operator_leaving_now_and_then(api) as operator:
        launches = Launches(api, proxy, server)
        launches.run()
    print(f"right verdicts: {sum(launches.right.values())} {dict(launches.right)}")
    print(f"{proxy.requests} requests, {sum(proxy.injected.values())} faults: {dict(proxy.injected)}")
    print(
        f"operator away {operator['away']} times, {launches.lost_lines} lines lost, {launches.repeated_lines} repeated"
    )
    assert not launches.wrong, "\n".join(launches.wrong)
    assert launches.right
