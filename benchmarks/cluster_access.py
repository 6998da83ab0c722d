"""The CPU time of importing what reads a kubeconfig and connects: ours, and that of two clients if they are installed.

python benchmarks/cluster_access.py
"""

import resource
import statistics
import subprocess
import sys
from importlib.util import find_spec

ROUNDS = 7
PEERS = {
    "kubetrain": "import kubetrain_components.jobs.kubernetes.api",
    "kubernetes": "import kubernetes.config.kube_config, kubernetes.client.rest",
    "lightkube": "import lightkube",
}


def cpu_seconds(program: str) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-c", program], check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    present = {name: program for name, program in PEERS.items() if find_spec(program.split()[1].split(".")[0])}
    rounds = [{name: cpu_seconds(program) for name, program in present.items()} for _ in range(ROUNDS)]
    ours = statistics.median(times["kubetrain"] for times in rounds)
    for name in present:
        median = statistics.median(times[name] for times in rounds)
        print(f"{name}: {median:.2f} s of CPU, {median / ours:.1f} times kubetrain's")


if __name__ == "__main__":
    main()
