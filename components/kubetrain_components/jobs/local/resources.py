"""What of this machine each pod of a local job gets, as the resource limits of a container would say."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubetrain_components.jobs.job import Job


def pod_shares(job: Job, cpus: int, gpus: Sequence[str]) -> dict[tuple[str, int], dict[str, str]]:
    """By role and index of the pod: threads that keep the CPUs busy, and GPUs.

    Where there are fewer GPUs than processes no pod gets one: two ranks of NCCL cannot share a GPU.
    """
    threads = max(1, cpus // (job.total_replicas * job.processes_per_replica))
    share = len(gpus) // job.total_replicas
    share = share if share >= job.processes_per_replica else 0
    return {
        (pod.role, pod.index): {
            "OMP_NUM_THREADS": str(threads),
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus[number * share :][:share])} if gpus else {}),
        }
        for number, pod in enumerate(job.pods())
    }


def visible_gpus(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """As CUDA would number them."""
    if (chosen := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [each.strip() for each in chosen.split(",") if each.strip()]
    return [str(number) for number in range(len(list(devices.glob("nvidia[0-9]*"))))]
