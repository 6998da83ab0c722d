"""A launcher in a separate process that follows a job on make-believe nodes, and what it costs."""

import contextlib
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
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import psutil

from kubetrain_components.interrupts import interrupted_by_sigterm
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Job
from kubetrain_components.jobs.job_state import JobHandle, JobState, LogLine, Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.pod_patch import pod_patch
from support.cluster import FOREVER, await_that
from support.following import evict, training_job

STAYS = "kubetrain-tests/stays"
"""Label of pods that run until they are deleted: kwok completes those of other Jobs at once."""
STAGES = "/apis/kwok.x-k8s.io/v1alpha1/stages"
ON_FAKE_NODES = {
    "restart_policy": "OnFailure",
    "pod": pod_patch(
        {"nodeSelector": {"type": "kwok"}, "tolerations": [{"key": "kwok.x-k8s.io/node", "operator": "Exists"}]},
        labels={STAYS: "true"},
    ),
}
SEEN = re.compile(r"^seen (\S+) running=(\d+) restarts=(\d+) ending=(\d+)$")
SETTLE_SECONDS, CHANGES, EVICTED = 15.0, 5, 50


def fake_nodes(api: KubernetesApi) -> int:
    return len((api.get("/api/v1/nodes", labelSelector="type=kwok") or {"items": []})["items"])


@contextlib.contextmanager
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


class Seen(NamedTuple):
    """Numbers of a state that the launcher saw."""

    running: int
    restarts: int
    ending: int
    """Pods that the cluster is ending."""


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

    def seen(self) -> tuple[float, Seen]:
        """Return the last state that the launcher saw, and when."""
        with self._changed:
            found = next((match for line in reversed(self.lines) if (match := SEEN.match(line))), None)
        return (float(found[1]), Seen(*map(int, found.groups()[1:]))) if found else (0.0, Seen(0, 0, 0))

    def log(self) -> list[str]:
        with self._changed:
            return [line for line in self.lines if not SEEN.match(line)]

    def await_seen(self, condition: Callable[[Seen], bool], seconds: float) -> float:
        """Wait until the launcher sees such a state; return when it did."""
        deadline = time.monotonic() + seconds
        while True:
            self.cost()
            at, seen = self.seen()
            if condition(seen):
                return at
            left = deadline - time.monotonic()
            assert left > 0, f"{seen}: {self.log()[-20:]}"
            assert self._process.poll() is None, self.log()[-20:]
            with self._changed:
                self._changed.wait(min(left, 1.0))

    def await_all_running(self, seconds: float, restarts: int = 0) -> float:
        return self.await_seen(lambda seen: seen.running == self.pods and seen.restarts >= restarts, seconds)

    def cancel(self, seconds: float) -> None:
        """Press Ctrl-C and wait for the end."""
        self._process.send_signal(signal.SIGINT)
        self._process.wait(seconds)

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


@dataclass(frozen=True, kw_only=True)
class Figures:
    seconds_to_run: float
    """From the launcher's start until it saw all pods run; so for its CPU time."""
    cpu_seconds_to_run: float
    share_at_rest: float
    """Share of a core that the launcher uses while nothing happens."""
    seconds_to_see: tuple[float, ...]
    """From the eviction of one pod until the launcher saw it."""
    seconds_to_replace: float
    """From the eviction of many pods until the launcher saw all pods run again."""
    cpu_seconds: float
    mebibytes: float
    threads: int
    seconds_to_cancel: float
    """From Ctrl-C to the end of the launcher."""
    seconds_to_vanish: float
    """From Ctrl-C until the last pod was gone."""


def measure(api: KubernetesApi, launch: LargeLaunch, rest_seconds: float, timeout: float = 1200.0) -> Figures:
    """Let the job run, let it rest, evict pods, and cancel it."""
    began = time.monotonic()
    launch.await_all_running(timeout)
    seconds_to_run, cpu_seconds_to_run = time.monotonic() - began, launch.cost().cpu_seconds
    time.sleep(SETTLE_SECONDS)
    before = launch.cost()
    time.sleep(rest_seconds)
    after = launch.cost()
    seconds_to_see = tuple(_seconds_to_see(api, launch, number, timeout) for number in range(1, CHANGES + 1))
    evicted_at = time.monotonic()
    evicted = pods_of(api)[:EVICTED]
    evict_all(api, evicted)
    launch.await_all_running(timeout, restarts=CHANGES + len(evicted))
    seconds_to_replace, whole = time.monotonic() - evicted_at, launch.cost()
    cancelled_at = time.monotonic()
    launch.cancel(60)
    seconds_to_cancel = time.monotonic() - cancelled_at
    await_that(lambda: not pods_of(api), timeout)
    return Figures(
        seconds_to_run=seconds_to_run,
        cpu_seconds_to_run=cpu_seconds_to_run,
        share_at_rest=(after.cpu_seconds - before.cpu_seconds) / (after.at - before.at),
        seconds_to_see=seconds_to_see,
        seconds_to_replace=seconds_to_replace,
        cpu_seconds=whole.cpu_seconds,
        mebibytes=launch.max_mebibytes,
        threads=launch.max_threads,
        seconds_to_cancel=seconds_to_cancel,
        seconds_to_vanish=time.monotonic() - cancelled_at,
    )


def _seconds_to_see(api: KubernetesApi, launch: LargeLaunch, number: int, timeout: float) -> float:
    evict_all(api, pods_of(api)[-1:])
    evicted_at = time.time()
    seen_at = launch.await_seen(lambda seen: seen.ending > 0 or seen.restarts >= number, timeout)
    launch.await_all_running(timeout, restarts=number)
    return max(seen_at - evicted_at, 0.0)


class _ReportingBackend(KubernetesBackend):
    def watch(self, handle: JobHandle) -> Iterator[JobState | None]:
        last: JobState | None = None
        before: Seen | None = None
        for state in super().watch(handle):
            if state is not last and state is not None and before != (before := _seen(state)):
                print(f"seen {time.time():.3f} " + " ".join(f"{name}={n}" for name, n in before._asdict().items()))
                sys.stdout.flush()
            last = state
            yield state


def _seen(state: JobState) -> Seen:
    return Seen(
        running=sum(pod.phase is Phase.RUNNING for pod in state.pods),
        restarts=sum(pod.restarts for pod in state.pods),
        ending=sum(pod.is_terminating for pod in state.pods),
    )


def _print(line: LogLine) -> None:
    print(f"[{line.pod}] {line.text}", flush=True)


if __name__ == "__main__":
    in_namespace, asked_launcher, number, asked_run = json.loads(sys.argv[1])
    with (
        contextlib.suppress(KeyboardInterrupt),
        interrupted_by_sigterm(),
        _ReportingBackend.connect(in_namespace) as connected,
    ):
        run_job(large_job(Launcher(asked_launcher), number, asked_run), connected, _print)
