"""A launcher in a separate process that follows a job on make-believe nodes, and what it costs."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Self

import psutil

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job, JobHandle, JobState, LogLine, Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from support.cluster import FOREVER
from support.following import evict, training_job

STAYS = "kubetrain-tests/stays"
"""Label of pods that run until they are deleted: kwok completes those of other Jobs at once."""
STAGES = "/apis/kwok.x-k8s.io/v1alpha1/stages"
ON_FAKE_NODES = {
    "node_selector": {"type": "kwok"},
    "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}],
    "labels": {STAYS: "true"},
    "restart_policy": "OnFailure",
}
SEEN = re.compile(r"^seen (\S+) running=(\d+) restarts=(\d+) uids=(\d+)$")


def fake_nodes(api: KubernetesApi) -> int:
    return len((api.get("/api/v1/nodes", labelSelector="type=kwok") or {"items": []})["items"])


@contextmanager
def pods_that_stay(api: KubernetesApi) -> Iterator[None]:
    """Let pods with our label run for a day."""
    name = f"stays-{uuid.uuid4().hex[:8]}"
    is_running = [
        {"key": ".metadata.deletionTimestamp", "operator": "DoesNotExist"},
        {"key": ".status.phase", "operator": "In", "values": ["Running"]},
    ]
    spec = {
        "resourceRef": {"apiGroup": "v1", "kind": "Pod"},
        "selector": {"matchLabels": {STAYS: "true"}, "matchExpressions": is_running},
        "weight": 1,
        "delay": {"durationMilliseconds": 86_400_000},
        "next": {},
    }
    api.create(
        STAGES, {"apiVersion": "kwok.x-k8s.io/v1alpha1", "kind": "Stage", "metadata": {"name": name}, "spec": spec}
    )
    try:
        yield
    finally:
        api.delete(f"{STAGES}/{name}")


def large_job(launcher: Launcher, pods: int, run_id: str) -> Job:
    return training_job(launcher, FOREVER, run_id, workers=pods, placement=ON_FAKE_NODES)


@dataclass(frozen=True)
class Cost:
    """What a process used: CPU seconds since its start, and memory and threads at this moment."""

    at: float
    cpu_seconds: float
    mebibytes: float
    threads: int

    @classmethod
    def of(cls, process: psutil.Process) -> Self:
        times = process.cpu_times()
        memory = process.memory_info().rss / (1 << 20)
        return cls(time.monotonic(), times.user + times.system, memory, process.num_threads())


class LargeLaunch:
    """Runs the launcher, and keeps the lines and states that it reports."""

    def __init__(self, namespace: str, launcher: Launcher, pods: int, run_id: str) -> None:
        self.pods, self.job = pods, large_job(launcher, pods, run_id)
        self.lines: list[str] = []
        self.max_mebibytes, self.max_threads = 0.0, 0
        self._changed = threading.Condition()
        spec = json.dumps([namespace, launcher, pods, run_id])
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, spec],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # the code that the test runs
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._measured = psutil.Process(self._process.pid)
        threading.Thread(target=self._read, daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()

    def cost(self) -> Cost:
        """Return the cost so far, and remember the highest."""
        cost = Cost.of(self._measured)
        self.max_mebibytes = max(self.max_mebibytes, cost.mebibytes)
        self.max_threads = max(self.max_threads, cost.threads)
        return cost

    def seen(self) -> tuple[float, int, int]:
        """Return the time of the last state that the launcher saw, and the pods that run and all restarts in it."""
        with self._changed:
            found = next((match for line in reversed(self.lines) if (match := SEEN.match(line))), None)
        return (float(found[1]), int(found[2]), int(found[3])) if found else (0.0, 0, 0)

    def log(self) -> list[str]:
        with self._changed:
            return [line for line in self.lines if not SEEN.match(line)]

    def await_seen(self, condition: Callable[[int, int], bool], seconds: float) -> float:
        """Wait for a state with this number of running pods and restarts; return the time at which it was seen."""
        deadline = time.monotonic() + seconds
        while True:
            self.cost()
            at, running, restarts = self.seen()
            if condition(running, restarts):
                return at
            left = deadline - time.monotonic()
            assert left > 0, f"{running} pods run, {restarts} restarts: {self.log()[-20:]}"
            assert self._process.poll() is None, self.log()[-20:]
            with self._changed:
                self._changed.wait(min(left, 1.0))

    def await_all_running(self, seconds: float) -> float:
        return self.await_seen(lambda running, restarts: running == self.pods, seconds)

    def cancel(self, seconds: float) -> int:
        """Press Ctrl-C and return the exit code."""
        self._process.send_signal(signal.SIGINT)
        return self._process.wait(seconds)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.lines.append(line.rstrip("\n"))
                self._changed.notify_all()


def pods_of(api: KubernetesApi) -> list[dict[str, Any]]:
    return list((api.list_all(api.path("v1", "pods")) or {"items": []})["items"])


def evict_all(api: KubernetesApi, pods: Sequence[dict[str, Any]]) -> None:
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(lambda pod: evict(api, pod), pods))


class _ReportingBackend(KubernetesBackend):
    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        before: tuple[int, ...] = ()
        for state in super().watch(handle):
            if state is not None and before != (before := _summary(state)):
                running, restarts, replaced = before
                print(f"seen {time.time():.3f} running={running} restarts={restarts} uids={replaced}", flush=True)
            yield state


def _summary(state: JobState) -> tuple[int, ...]:
    running = sum(pod.phase is Phase.RUNNING for pod in state.pods)
    return running, sum(pod.restarts for pod in state.pods), sum(pod.replacements for pod in state.pods)


def _print(line: LogLine) -> None:
    print(f"[{line.pod}] {line.text}", flush=True)


if __name__ == "__main__":
    in_namespace, asked_launcher, number, asked_run = json.loads(sys.argv[1])
    with interrupted_by_sigterm(), _ReportingBackend.connect(in_namespace) as connected:
        run_job(large_job(Launcher(asked_launcher), number, asked_run), connected, _print)
