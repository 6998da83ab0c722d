"""Follows jobs on the test cluster like a launcher, while something happens to them."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import Elastic, Job, RestartPolicy
from kubetrain_components.jobs.job_kinds import JobKind
from kubetrain_components.jobs.job_state import JobState, LogLine, Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_components.manifest import Manifest
from kubetrain_trainer.settings.config import TrainConfig
from support.cluster import SMALL, pods_job


class Heard:
    def __init__(self) -> None:
        self.lines: list[LogLine] = []

    def __call__(self, line: LogLine) -> None:
        self.lines.append(line)

    def of(self, pod: str) -> list[str]:
        return [line.text for line in self.lines if line.pod == pod]


def failure_of(job: Job, backend: KubernetesBackend, **options: Any) -> JobFailed:
    with pytest.raises(JobFailed) as failed:
        run_job(job, backend, Heard(), **options)
    return failed.value


def await_running(backend: KubernetesBackend, job: Job) -> JobState:
    return await_state(backend, job, lambda state: state.is_under_way and state.phase is Phase.RUNNING)


def await_state(backend: KubernetesBackend, job: Job, condition: Callable[[JobState], bool]) -> JobState:
    deadline = time.monotonic() + 60
    while (found := backend.find(job)) is None and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found is not None, "the job does not exist"
    for state in backend.watch(found.handle):
        if state is not None and condition(state):
            return state
        assert time.monotonic() < deadline, f"the job is still {state}"
    raise AssertionError("the job is gone")


def worker_job(program: str, backoff_limit: int = 3, **placement: Any) -> Job:
    """Return a PyTorchJob of one Worker, whose pod has no init container to wait for."""
    made = pods_job(
        program, run_id="disrupted", policy=RestartPolicy.ON_FAILURE, backoff_limit=backoff_limit, **placement
    )
    worker = replace(made.replicas[0], role="Worker")
    elastic = Elastic(min_replicas=1, max_replicas=1)
    return replace(made, kind=JobKind.PYTORCH_JOB, replicas=(worker,), elastic=elastic)


def batch_job(program: str, run_id: str, policy: RestartPolicy = RestartPolicy.ON_FAILURE, **placement: Any) -> Job:
    return pods_job(program, run_id=run_id, kind=JobKind.BATCH_JOB, policy=policy, **placement)


def training_job(launcher: Launcher, program: str, run_id: str, framework: str = "pytorch", **changes: Any) -> Job:
    """Return a training of two pods, each of which runs a few lines of Python."""
    placement = Placement(**{**SMALL, "restart_policy": "Never", **changes.pop("placement", {})})
    made = TrainingJob(
        framework=framework,
        config=TrainConfig(),
        pipeline="launchers",
        run_id=run_id,
        data_dir=Path("/data"),
        output_dir=Path("/output"),
        workers=2,
        launcher=launcher,
        placement=placement,
    )
    job = replace(made, **changes).to_job()
    command = ("python", "-u", "-c", program)
    return replace(job, replicas=tuple(replace(each, command=command) for each in job.replicas))


@contextmanager
def once_running(api: KubernetesApi, job: Job, act: Callable[[KubernetesApi, Manifest], None]) -> Iterator[None]:
    """Call act with the last of the job's pods once all are running."""

    def wait_and_act() -> None:
        with KubernetesBackend(api) as other:
            await_running(other, job)
        pods = api.get(api.path("v1", "pods"))["items"]
        act(api, max(pods, key=lambda pod: pod["metadata"]["name"]))

    acting = threading.Thread(target=wait_and_act)
    acting.start()
    yield
    acting.join()


def evict(api: KubernetesApi, pod: Manifest) -> None:
    """Evict the pod like `kubectl drain`."""
    name = pod["metadata"]["name"]
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": api.namespace}}
    api.create(api.path("v1", "pods", f"{name}/eviction"), eviction)


@contextmanager
def priority_class(name: str) -> Iterator[None]:
    api, classes = KubernetesApi.connect(), "/apis/scheduling.k8s.io/v1/priorityclasses"
    api.create(
        classes,
        {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": name},
            "value": 1000,
        },
    )
    try:
        yield
    finally:
        api.delete(f"{classes}/{name}")
