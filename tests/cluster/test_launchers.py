"""The contract of a training's job, whatever runs its pods: an operator of either version, or Kubernetes alone."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job import VERDICT_ANNOTATION, Job, LogLine, Phase
from kubetrain_components.jobs.kubernetes.api import KubernetesApi
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.config import TrainConfig
from support.cluster import SMALL

pytestmark = [pytest.mark.cluster, pytest.mark.core]

MEET = """
import os, socket, time
rank, host, port = (os.environ["PET_" + name] for name in ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT"))
if rank == "0":
    server = socket.create_server(("", int(port)))
    print("rank 0 met", server.accept()[0].recv(9).decode(), "of", os.environ["PET_NNODES"])
else:
    while True:
        try:
            socket.create_connection((host, int(port)), 5).sendall(b"rank " + rank.encode())
            break
        except OSError:
            time.sleep(0.2)
"""
MEET_BY_TF_CONFIG = """
import json, os, socket, time
config = json.loads(os.environ["TF_CONFIG"])
task, cluster = config["task"], config["cluster"]
lead = (cluster.get("chief") or cluster["worker"])[0]
host, port = lead.split(":")
own = cluster[task["type"]][task["index"]]
if own == lead:
    server = socket.create_server(("", int(port)))
    print("met", server.accept()[0].recv(200).decode())
else:
    while True:
        try:
            socket.create_connection((host, int(port)), 5).sendall(own.encode())
            break
        except OSError:
            time.sleep(0.2)
"""
FAIL = "import os, time; time.sleep(1); raise SystemExit(3 if os.environ['PET_NODE_RANK'] == '1' else time.sleep(3600))"


def training(launcher: Launcher, program: str, run_id: str, framework: str = "pytorch", **changes: Any) -> Job:
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


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest, api: KubernetesApi) -> Launcher:
    return Launcher(request.param)


def heard(lines: list[LogLine]) -> list[str]:
    return [line.text for line in lines]


class TestContract:
    def test_its_pods_find_each_other_and_all_succeed(self, launcher: Launcher, backend: KubernetesBackend) -> None:
        lines: list[LogLine] = []
        job = training(launcher, MEET, "meets")
        state = run_job(job, backend, lines.append)
        assert "rank 0 met rank 1 of 2" in heard(lines)
        assert state.phase is Phase.SUCCEEDED
        assert [pod.phase for pod in state.pods] == [Phase.SUCCEEDED] * 2
        assert run_job(job, backend, lines.append).annotations[VERDICT_ANNOTATION] == "succeeded"
