"""A script of your own by torchrun, and a command, in two pods of each launcher."""

import time
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.launchers import LAUNCHERS, Launcher
from kubetrain_components.jobs.pod_patch import pod_patch
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.training_job import TrainingJob
from support.cli import kubetrain
from support.cluster import ENDPOINT_FOR_ALL, Bucket
from support.ends_of_ranks import BEFORE_IN_TORCH, WAYS, check_names_it, program
from support.training_cluster import OUTPUT, Cluster

pytestmark = pytest.mark.cluster
CORE = pytest.mark.core
SCRIPT = """
import torch
from torch import distributed as dist
from kubetrain_trainer import session

dist.init_process_group("gloo")
for step in range(3):
    one = torch.ones(1)
    dist.all_reduce(one)
    session.log(step + 1, total=one)
session.save(3, lambda folder: (folder / "state").write_text("3"))
session.finish(lambda folder: torch.save(one, folder / "model.pt"), {"total": one})
dist.destroy_process_group()
"""
FAILS_ALONE = """
import time, torch, torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
dist.all_reduce(torch.ones(1))
dist.destroy_process_group()
print("rank", rank, "has met the other")
if rank == 0:
    time.sleep(3)
    raise RuntimeError("disk says no")
"""
COMMAND = """
import os, time
from pathlib import Path

output = Path(os.environ["KUBETRAIN_OUTPUT"])
rank, pods = int(os.environ["PET_NODE_RANK"]), int(os.environ["PET_NNODES"])
print("pod", rank, "of", pods)
Path(output, f"pod-{rank}").touch()
while len(list(output.glob("pod-*"))) < pods:
    time.sleep(0.1)  # the training operator lets the others start only while the first one runs
if rank == 0:
    Path(output, "export").mkdir()
    Path(output, "export", "weights").write_text("1")
"""


@pytest.fixture
def cluster(namespace: str) -> Cluster:
    return Cluster(namespace, Bucket("unused"))


def training(cluster: Cluster, entry: dict[str, Any], launcher: Launcher, script: str = SCRIPT) -> TrainingJob:
    synthetic = cluster.synthetic_training(epochs=1, launcher=launcher)
    config = replace(synthetic.config, entry=entry)
    code = {"name": "code", "emptyDir": {}}
    mount = {"name": "code", "mountPath": "/code"}
    writer = {
        "name": "write-code",
        "image": synthetic.placement.image,
        "command": ["python", "-c", f"open('/code/train.py', 'w').write({script!r})"],
        "volumeMounts": [mount],
    }
    placed = replace(
        synthetic.placement, pod=pod_patch({"initContainers": [writer], "volumes": [code]}, {"volumeMounts": [mount]})
    )
    return replace(synthetic, config=config, placement=placed)


@pytest.mark.parametrize(
    "launcher", [pytest.param(each, marks=CORE if each is Launcher.JOB else ()) for each in LAUNCHERS]
)
def test_a_script_meets_by_torchrun_and_saves_by_the_session(cluster: Cluster, launcher: Launcher) -> None:
    result = cluster.launch(training(cluster, {"script": "/code/train.py"}, launcher))
    assert (result["step"], result["checkpoint"]) == (3, "step-00000003")
    assert "[kubetrain] step=3 total=2" in {line.text for line in cluster.lines}


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_a_command_runs_once_in_each_pod(cluster: Cluster, launcher: Launcher) -> None:
    result = cluster.launch(training(cluster, {"command": ["python", "-c", COMMAND]}, launcher))
    assert (result["step"], result["checkpoint"]) == (0, "step-00000000")
    assert {line.text for line in cluster.lines} >= {"pod 0 of 2", "pod 1 of 2"}


@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize(
    ("entry", "elastic"),
    [
        pytest.param({"script": "/code/train.py"}, {}, id="script"),
        pytest.param({"script": "/code/train.py"}, {"min_workers": 2}, id="elastic"),
        pytest.param({"command": ["python", "/code/train.py"]}, {}, id="command"),
    ],
)
def test_rank_0_that_fails_when_the_others_have_ended_fails_the_training(
    cluster: Cluster, launcher: Launcher, entry: dict[str, Any], elastic: dict[str, int]
) -> None:
    failed: list[float] = []

    def hear(line: LogLine) -> None:
        cluster.hear(line)
        if "disk says no" in line.text:
            failed.append(time.monotonic())

    job = replace(training(cluster, entry, launcher, FAILS_ALONE), **elastic)
    with pytest.raises(JobFailed, match="RuntimeError: disk says no"), KubernetesBackend(cluster.api) as backend:
        launch_training(job, backend, hear)
    assert time.monotonic() - failed[0] < 30
    assert [line.text for line in cluster.lines].count("rank 0 has met the other") == 1


@pytest.mark.thorough
@pytest.mark.parametrize("launcher", LAUNCHERS)
@pytest.mark.parametrize("way", WAYS)
def test_however_one_of_two_ranks_ends_the_verdict_names_it(cluster: Cluster, launcher: Launcher, way: str) -> None:
    script = program(way, BEFORE_IN_TORCH)
    job = training(cluster, {"script": "/code/train.py"}, launcher, script)
    job = replace(job, placement=replace(job.placement, max_restarts=1))
    with pytest.raises(JobFailed) as failed, KubernetesBackend(cluster.api) as backend:
        launch_training(job, backend, cluster.hear)
    check_names_it(str(failed.value), way, script)


@CORE
def test_an_edited_line_trains_in_the_next_job(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.synthetic_training(epochs=1)  # and its PVC
    for name, value in Bucket.credentials.items():
        monkeypatch.setenv(name, value)
    with Bucket(f"code-{uuid.uuid4().hex[:8]}") as bucket:
        store = ("--set", f"model.uri={bucket.uri('models')}", "--set", f"data.endpoint={ENDPOINT_FOR_ALL}")
        settings = ("train.entry=train.py", "data.format=synthetic", "pods.cpu=200m", "pods.launcher=job")
        entry = [part for pair in settings for part in ("--set", pair)]
        place = ("--cluster", "--namespace", cluster.api.namespace, "--output", OUTPUT.claim)
        for edit in ("total", "edited"):
            (tmp_path / "train.py").write_text(SCRIPT.replace("total=one)", f"{edit}=one)"))
            trained = kubetrain("train", *place, "--code", ".", *store, *entry, cwd=tmp_path)
            assert trained.exit_code == 0, trained.output
            assert f"[kubetrain] step=3 {edit}=2" in trained.output
