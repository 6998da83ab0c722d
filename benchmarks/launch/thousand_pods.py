"""Measure what a launcher costs that follows a job of 1,000 pods, of which 50 are evicted at once, and cancels it.

.venv/bin/python benchmarks/launch/thousand_pods.py [--pods 1000] [--launcher job] [--rest-seconds 130], with KUBECONFIG
naming a cluster with kwok nodes (label type=kwok, taint kwok.x-k8s.io/node), on which pods run only in the API.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

from overhead import namespace

from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.many_pods import LargeLaunch, evict_all, fake_nodes, pods_of, pods_that_stay

START_SECONDS, SETTLE_SECONDS, CHANGES, EVICTED = 900.0, 15.0, 5, 50


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--launcher", default="job", choices=[*LAUNCHERS])
    parser.add_argument("--rest-seconds", type=float, default=130.0, help="how long to measure at rest")
    options = parser.parse_args()
    with namespace() as api:
        if not fake_nodes(api):
            raise SystemExit("the cluster has no kwok nodes")
        with (
            pods_that_stay(api),
            LargeLaunch(api.namespace, Launcher(options.launcher), options.pods, "thousand") as launch,
        ):
            measure(api, launch, options.rest_seconds)


def measure(api: KubernetesApi, launch: LargeLaunch, rest_seconds: float) -> None:
    began = time.monotonic()
    launch.await_all_running(START_SECONDS)
    print(f"start to all {launch.pods} running: {time.monotonic() - began:.1f} s")
    print(f"  {launch.cost().cpu_seconds:.1f} CPU-seconds", flush=True)
    time.sleep(SETTLE_SECONDS)
    before = launch.cost()
    time.sleep(rest_seconds)
    after = launch.cost()
    share = (after.cpu_seconds - before.cpu_seconds) / (after.at - before.at)
    print(f"at rest: {share:.2%} of a core over {rest_seconds:.0f} s", flush=True)
    delays = [seconds_until_seen(api, launch, number) for number in range(1, CHANGES + 1)]
    print(f"an eviction of one pod is seen in {statistics.median(delays):.2f} s (at most {max(delays):.2f} s)")
    began = time.monotonic()
    evict_all(api, pods_of(api)[:EVICTED])
    print(f"{EVICTED} pods evicted in {time.monotonic() - began:.1f} s", flush=True)
    launch.await_seen(lambda running, restarts: running == launch.pods and restarts >= CHANGES + EVICTED, START_SECONDS)
    print(f"  all {launch.pods} run again after {time.monotonic() - began:.1f} s", flush=True)
    whole = launch.cost()
    print(f"CPU-seconds until then: {whole.cpu_seconds:.1f}")
    print(f"at most {launch.max_mebibytes:.0f} MiB and {launch.max_threads} threads", flush=True)
    cancel(api, launch)


def seconds_until_seen(api: KubernetesApi, launch: LargeLaunch, number: int) -> float:
    evicted_at = time.time()
    evict_all(api, pods_of(api)[-1:])
    evicted_at = time.time()
    seen_at = launch.await_seen(lambda running, restarts: running < launch.pods or restarts >= number, 60)
    launch.await_seen(lambda running, restarts: running == launch.pods and restarts >= number, START_SECONDS)
    return seen_at - evicted_at


def cancel(api: KubernetesApi, launch: LargeLaunch) -> None:
    began = time.monotonic()
    launch.cancel(60)
    print(f"Ctrl-C to the end of the launcher: {time.monotonic() - began:.1f} s")
    while pods := pods_of(api):
        time.sleep(2)
        if time.monotonic() - began > START_SECONDS:
            raise SystemExit(f"{len(pods)} pods are left")
    print(f"  to the last pod gone: {time.monotonic() - began:.1f} s")
    for line in launch.log()[-20:]:
        print(f"  log: {line}")
    print(f"  {len(launch.log())} lines of log")


if __name__ == "__main__":
    main()
