"""Measure the delay of pods' log lines and the memory they use on their way.

.venv/bin/python benchmarks/launch/logs.py delay [--namespace NAME] [--image python:3.11-slim]
.venv/bin/python benchmarks/launch/logs.py memory [--lines 10000000]

delay: four pods on the cluster that KUBECONFIG names print a thousand lines per second each, each with its time.
Their clock and this machine's must agree.
memory: a server in a process of its own sends the lines as fast as they are taken; four pods share them.
"""

import argparse
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.pod_logs import PodLogs
from kubetrain_components.jobs.kubernetes.watched import Watched

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.api_server import PODS, ApiServer, Handler, stamp

NUM_PODS, LINES_A_SECOND, SECONDS = 4, 1000, 30
FIRST_SECONDS = 3
"""The kubelet reports a running container up to a second late, and serves no log before that."""
LABELS = {"benchmark": "logs"}
PRINTING = f"""
import time
for tick in range({SECONDS * 100}):
    for _ in range({LINES_A_SECOND // 100}):
        print(time.time(), 'x' * 80)
    time.sleep(0.01)
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["delay", "memory"])
    parser.add_argument("--namespace", default="")
    parser.add_argument("--image", default="python:3.11-slim")
    parser.add_argument("--lines", type=int, default=10_000_000)
    options = parser.parse_args()
    if options.what == "delay":
        measure_delay(options.namespace, options.image)
    else:
        measure_memory(options.lines)


def measure_delay(namespace: str, image: str) -> None:
    api = KubernetesApi.connect(namespace)
    names = [f"logs-{index}" for index in range(NUM_PODS)]
    path = api.path("v1", "pods")
    try:
        for name in names:
            api.create(path, printing_pod(name, image))
        delays = defaultdict(list)
        for line in follow(api, path):
            delays[line.pod].append(time.time() - float(line.text.split()[0]))
    finally:
        for name in names:
            api.delete(api.path("v1", "pods", name))
    print_percentiles("all", [delay for of_pod in delays.values() for delay in of_pod])
    started = FIRST_SECONDS * LINES_A_SECOND
    print_percentiles("after the start", [delay for of_pod in delays.values() for delay in of_pod[started:]])


def print_percentiles(which: str, delays: list[float]) -> None:
    percentiles = statistics.quantiles(delays, n=100)
    median, late = percentiles[49], percentiles[98]
    print(
        f"{which}: {len(delays):,} lines; late by {median:.3f} s (p50), {late:.3f} s (p99), {max(delays):.3f} s (most)"
    )


def printing_pod(name: str, image: str) -> dict[str, Any]:
    command = ["python3", "-u", "-c", PRINTING]
    container = {"name": "main", "image": image, "imagePullPolicy": "IfNotPresent", "command": command}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": LABELS},
        "spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [container]},
    }


def follow(api: KubernetesApi, path: str) -> Iterator[LogLine]:
    pods = Watched(api, path, labelSelector=",".join(f"{key}={value}" for key, value in LABELS.items()))
    pods.start()
    logs = PodLogs(api, pods, "main", lambda pod: str(pod["metadata"]["name"]))
    yield from logs.lines(lambda: are_over(pods))
    pods.stop()


def are_over(pods: Watched) -> bool:
    phases = [pod.manifest.get("status", {}).get("phase") for pod in pods.objects()]
    return phases == ["Succeeded"] * NUM_PODS


def measure_memory(num_lines: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        server = multiprocessing.get_context("spawn").Process(target=serve, args=(Path(folder), num_lines), daemon=True)
        server.start()
        while not kubeconfig.exists():
            time.sleep(0.1)
        os.environ["KUBECONFIG"] = str(kubeconfig)
        api = KubernetesApi.connect()
        began = time.monotonic()
        count = 0
        for count, _ in enumerate(follow(api, PODS), 1):
            if count % (num_lines // 10) == 0:
                memory = psutil.Process().memory_info().rss >> 20
                print(f"{count:>12,} lines after {time.monotonic() - began:5.1f} s: {memory} MiB", flush=True)
        assert count == num_lines, f"{count:,} lines came"
        server.terminate()


class Flood(Handler):
    """A server with an equal share of the lines for each pod, generated on the fly."""

    num_lines = 0

    def send_log(self, pod: str) -> None:
        self.begin_stream()
        if "sinceTime" not in self.query:  # everything has been sent otherwise
            for start in range(0, self.num_lines, 500):
                time_of = stamp(start / 50_000).encode()
                self.send_chunk(
                    b"".join(b"%s %d %s\n" % (time_of, number, b"x" * 80) for number in range(start, start + 500))
                )
        self.end_stream()
        self.api.end(pod)


def serve(folder: Path, num_lines: int) -> None:
    Flood.num_lines = num_lines // NUM_PODS
    server = ApiServer(Flood)
    server.listen()
    for index in range(NUM_PODS):
        server.run(f"pod-{index}")
    server.kubeconfig(folder)
    time.sleep(3600)


if __name__ == "__main__":
    main()
