"""Measure the cost of launching: from the command's start to the job's creation, and from the job's end to the exit.

.venv/bin/python benchmarks/launch/overhead.py [--launches 5], with KUBECONFIG naming a cluster that has the images.
"""

import argparse
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.watched import Watched, WatchedObject

PODS = ("pods.workers=1", "pods.cpu=200m", "pods.memory=1Gi")
SETTINGS = ("data.format=synthetic", "train.epochs=1", "train.max_steps=3", *PODS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--launches", type=int, default=5, help="launches; the median counts")
    launches = parser.parse_args().launches
    with namespace() as api:
        measured = [launch(api, f"launch-{number}") for number in range(launches)]
    for name, values in zip(("start to creation", "end to exit"), zip(*measured, strict=True), strict=True):
        print(f"{name}: {statistics.median(values):.2f} s ({min(values):.2f} to {max(values):.2f})")


@contextmanager
def namespace() -> Iterator[KubernetesApi]:
    api, name = KubernetesApi.connect(), f"overhead-{uuid.uuid4().hex[:8]}"
    api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    api = KubernetesApi.connect(name)
    spec = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    claim = {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": "output"}, "spec": spec}
    api.create(api.path("v1", "persistentvolumeclaims"), claim)
    try:
        yield api
    finally:
        api.delete(f"/api/v1/namespaces/{name}")


def launch(api: KubernetesApi, run_id: str) -> tuple[float, float]:
    """Return the seconds until the job exists, and from its success to the exit."""
    jobs = Watched(api, api.path("kubeflow.org/v1", "pytorchjobs"), labelSelector=f"kubetrain/run-id={run_id}")
    jobs.start()
    program = [str(Path(sys.executable).with_name("kubetrain")), "train", "--cluster", "--namespace", api.namespace]
    settings = [f"--set={pair}" for pair in SETTINGS]
    ended: list[float] = []
    watcher = threading.Thread(target=lambda: ended.append(moment(jobs, has_succeeded)))
    watcher.start()
    began = time.monotonic()
    process = subprocess.Popen(
        [*program, "--output", "output", "--run-id", run_id, *settings], stdout=subprocess.DEVNULL
    )
    created = moment(jobs, bool)
    if process.wait():
        raise SystemExit(f"the launch ended with exit code {process.returncode}")
    exited = time.monotonic()
    watcher.join()
    jobs.stop()
    return created - began, exited - ended[0]


def moment(jobs: Watched, holds: Callable[[list[WatchedObject]], bool]) -> float:
    with jobs.changed:
        while not holds(jobs.objects()):
            jobs.changed.wait()
    return time.monotonic()


def has_succeeded(found: list[WatchedObject]) -> bool:
    conditions = [each for job in found for each in (job.manifest.get("status") or {}).get("conditions") or []]
    return any((each["type"], each["status"]) == ("Succeeded", "True") for each in conditions)


if __name__ == "__main__":
    main()
