"""The CPUs and GPUs of this machine for each pod of a local job, in place of a container's resource limits."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from kubetrain_components.jobs.job import Job


def pod_shares(job: Job, cpus: int, gpus: Sequence[str]) -> dict[tuple[str, int], dict[str, str]]:
    """Return the variables for CPU threads and GPUs of each pod, by its role and index.

    If there are fewer GPUs than processes, no pod gets one: two NCCL ranks cannot share a GPU.
    """
    threads = max(1, cpus // (job.total_replicas * job.processes_per_replica))
    gpus_each = len(gpus) // job.total_replicas
    gpus_each = gpus_each if gpus_each >= job.processes_per_replica else 0
    return {
        (pod.role, pod.index): {
            "OMP_NUM_THREADS": str(threads),
            **({"CUDA_VISIBLE_DEVICES": ",".join(gpus[number * gpus_each :][:gpus_each])} if gpus else {}),
        }
        for number, pod in enumerate(job.pods())
    }


def visible_gpus(environment: Mapping[str, str] = os.environ, devices: Path = Path("/dev")) -> list[str]:
    """Return the GPUs as CUDA numbers them."""
    if (chosen := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [each.strip() for each in chosen.split(",") if each.strip()]
    return [str(number) for number in range(len(list(devices.glob("nvidia[0-9]*"))))]
