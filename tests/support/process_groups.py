"""Trainer processes that find each other without a launcher."""

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_components.jobs.local.operator import pod_environments
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.settings.config import TrainConfig


def start(program: str, folder: Path, **environment: str) -> "subprocess.Popen[str]":
    return start_python("-c", program, folder, cwd=folder, **environment)


def start_ranks(
    program: str, folder: Path, world_size: int, trainings: Mapping[str, TrainConfig], **environment: str
) -> "list[subprocess.Popen[str]]":
    """Start PyTorch's processes of these trainings, by a program such as TRAIN_AND_EVALUATE."""
    flags = {name: config.to_flags() for name, config in trainings.items()}
    ports = free_ports(1 + len(trainings))
    common = {"TRAININGS": json.dumps(flags), **environment}
    return [
        start(program, folder, **(torchrun_variables(ports, rank, world_size) | common)) for rank in range(world_size)
    ]


def start_python(
    *arguments: object, cwd: Path, prefix: Sequence[str] = (), **environment: str
) -> "subprocess.Popen[str]":
    """Start Python with what the tests import, and with what lies in the folder."""
    path = os.pathsep.join([str(cwd), *filter(None, sys.path)])
    return subprocess.Popen(
        [*prefix, sys.executable, *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def elastic_workers(data_dir: Path, output_dir: Path, **settings: Any) -> tuple[list[str], list[dict[str, str]]]:
    """Return the command of an endless training for one or two workers, and the environment of each."""
    job = TrainingJob(
        framework="pytorch",
        config=TrainConfig(epochs=1000, checkpoint_every=100000, log_every=5, metrics_port=0, **settings),
        pipeline="p",
        run_id="run",
        data_dir=data_dir,
        output_dir=output_dir,
        workers=2,
        min_workers=1,
    ).to_job()
    environments = pod_environments(job, {(pod.role, pod.index): {} for pod in job.pods()}, {})
    both = [{**environments["Worker", index], "GLOO_SOCKET_IFNAME": "lo"} for index in range(2)]
    return list(job.replicas[0].command), both


def torchrun_variables(ports: list[int], rank: int, world_size: int = 2) -> dict[str, str]:
    first, *others = map(str, ports)
    size = str(world_size)
    group = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": first, "WORLD_SIZE": size, "LOCAL_WORLD_SIZE": size}
    return {**group, "RANK": str(rank), "LOCAL_RANK": str(rank), "PORTS": " ".join(others)}


def tf_config(ports: list[int], index: int) -> str:
    cluster: dict[str, Any] = {"worker": [f"127.0.0.1:{port}" for port in ports]}
    return json.dumps({"cluster": cluster, "task": {"type": "worker", "index": index}})
