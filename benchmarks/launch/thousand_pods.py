"""Measure what a launcher costs that follows a job of 1,000 pods, of which 50 are evicted at once, and cancels it.

.venv/bin/python benchmarks/launch/thousand_pods.py [--pods 1000] [--launcher job] [--rest-seconds 130], with KUBECONFIG
naming a cluster with kwok nodes (label type=kwok, taint kwok.x-k8s.io/node), on which pods run only in the API.
"""

import argparse
import dataclasses
import sys
from pathlib import Path

from overhead import namespace

from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))
from support.many_pods import LargeLaunch, fake_nodes, measure, pods_that_stay


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--launcher", default="job", choices=[*LAUNCHERS])
    parser.add_argument("--rest-seconds", type=float, default=130.0, help="how long to measure at rest")
    options = parser.parse_args()
    with namespace() as api:
        if not fake_nodes(api):
            raise SystemExit("the cluster has no kwok nodes")
        launcher = Launcher(options.launcher)
        with pods_that_stay(api), LargeLaunch(api.namespace, launcher, options.pods, "thousand") as launch:
            figures = measure(api, launch, options.rest_seconds)
    for name, value in dataclasses.asdict(figures).items():
        values = value if isinstance(value, tuple) else (value,)
        print(f"{name.replace('_', ' ')}: {', '.join(f'{each:.4g}' for each in values)}")
    print(f"{len(launch.log())} lines of log, the last ones:", *launch.log()[-8:], sep="\n  ")


if __name__ == "__main__":
    main()
