"""Trainings of two pods whose disks nothing shares: what is killed at any moment resumes to the same weights."""

import contextlib
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_components.object_store.open_store import open_store
from kubetrain_pipelines.local_run.embedded_s3 import EmbeddedS3
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, choose_checkpoint
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.pytorch_ddp.state_files import joined, read_files
from support.cli import read_until
from support.kept_output import PodDisk, pod_disk
from support.process_groups import start_python, tf_config, torchrun_variables
from support.tiers import ONE_IN_CI
from support.training import assert_same, largest_difference

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

SETTINGS = [
    *("--model", "digits_cnn", "--data", "synthetic", "--synthetic", '{"samples": 512}', "--epochs", 100),
    *("--batch-size", 16, "--max-steps", 400, "--checkpoint-every", 15, "--keep-checkpoints", 2),
    *("--select-checkpoint", "last", "--metrics-port", 0),
]
KILLS = 5


SCRIPT = """
import os, torch.distributed as dist
from kubetrain_trainer.own_code import session
dist.init_process_group("gloo")
rank, checkpoint = dist.get_rank(), session.resume()
print("found", checkpoint and sorted(path.name for path in checkpoint.path.iterdir()), flush=True)
step = checkpoint.step + 1 if checkpoint else 1
session.save(step, lambda folder: (folder / f"part-{rank}").write_text(str(step)), collective=True)
if not checkpoint:
    dist.barrier()
    os._exit(3)
session.finish(lambda folder: (folder / f"model-{rank}").write_text("model"), {"accuracy": 1.0}, collective=True)
"""


@pytest.fixture
def disks(tmp_path: Path, bucket: str, s3: EmbeddedS3) -> Iterator[list[PodDisk]]:
    uri = f"s3://{bucket}/outputs"
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(pod_disk(tmp_path / f"pod-{rank}", uri, s3.url)) for rank in range(2)]


def train_pair(
    framework: str, folder: Path, disks: "list[PodDisk] | None" = None, *settings: object
) -> list["subprocess.Popen[str]"]:
    ports = free_ports(2)
    return [
        start_python(
            *("-u", "-m", f"{package_of(framework)}.train", "--data-dir", ".", "--output-dir", "run"),
            *(*SETTINGS, *settings),
            cwd=disks[rank].root if disks else folder,  # pods have the same path for what is on their own disks
            **variables_of(framework, ports, rank),
            **(disks[rank].variables if disks else {}),
        )
        for rank in range(2)
    ]


def variables_of(framework: str, ports: list[int], rank: int) -> dict[str, str]:
    if framework == "tensorflow":
        return {"TF_CONFIG": tf_config(ports, rank)}
    return {**torchrun_variables(ports, rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}


def finished(pair: list["subprocess.Popen[str]"]) -> str:
    outputs = [process.communicate(timeout=240)[0] for process in pair]
    assert [process.returncode for process in pair] == [0, 0], outputs
    return "".join(outputs)


def chosen(output: TrainingOutput) -> Checkpoint:
    return choose_checkpoint(output.checkpoints, output.train_config())


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_kills_at_random_moments_lead_to_the_same_weights(
    framework: str, tmp_path: Path, disks: list[PodDisk], monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(train_pair(framework, tmp_path))
    chance, resumed, what = random.Random(7), 0, ["sidecar", "pod-0", "pod-1", "training", "both"]
    for number in range(KILLS):
        pair = train_pair(framework, tmp_path, disks)
        seen = read_until(pair[0], "saved step") if number else ""  # the first is killed at its start
        time.sleep(chance.uniform(0, 1.5))
        killed = what[number % len(what)]
        if killed == "sidecar":
            disks[0].restart()
            time.sleep(1)
        for process in pair:
            process.kill()
        resumed += "resumes from" in seen
        for process in pair:
            process.communicate()
        for rank, disk in enumerate(disks):
            if killed in (f"pod-{rank}", "both"):
                shutil.rmtree(disk.root / "run", ignore_errors=True)
                disk.restart()
    finished(train_pair(framework, tmp_path, disks))
    assert resumed == KILLS - 2

    with_claim = chosen(TrainingOutput(tmp_path / "run"))
    shutil.rmtree(disks[0].root / "run")
    disks[0].restart()
    monkeypatch.setenv(output_store.VARIABLE, str(disks[0].root))
    output = TrainingOutput(disks[0].root / "run")
    output_store.begin(output.path)
    assert output.is_finished()
    assert largest_difference(chosen(output), with_claim) == 0
    assert output.read_export()["step"] == with_claim.step
    rows = output.metrics.read_text().splitlines()
    assert len({row for row in rows if '"loss"' in row}) > 3


def test_processes_write_their_shards_on_their_own_disks(
    tmp_path: Path, bucket: str, s3: EmbeddedS3, disks: list[PodDisk]
) -> None:
    settings = ("--sharding", "full", "--max-steps", 150)
    pair = train_pair("pytorch", tmp_path, disks, *settings)
    read_until(pair[0], "saved step")
    for process in pair:
        process.kill()
        process.communicate()
    for disk in disks:
        shutil.rmtree(disk.root / "run")
        disk.restart()
    log = finished(train_pair("pytorch", tmp_path, disks, *settings))
    assert log.count("resumes from") == 2
    store = open_store(f"s3://{bucket}/outputs/run", s3.url)
    for name in ("metrics.jsonl", "time.json"):
        assert store.read(name).read() == (disks[0].root / "run" / name).read_bytes(), "also what follows the export"
    keys = [item.key for item in store.list()]
    assert sum("step-00000150/files/" in key for key in keys) == 2
    finished(train_pair("pytorch", tmp_path, None, *settings))
    states = [joined(read_files(chosen(TrainingOutput(folder / "run")).path)) for folder in (disks[0].root, tmp_path)]
    assert_same(*states)


def test_a_script_saves_by_all_its_processes(bucket: str, s3: EmbeddedS3, disks: list[PodDisk]) -> None:
    seen = []
    for _ in range(2):
        ports = free_ports(2)
        for disk in disks:
            shutil.rmtree(disk.root / "run", ignore_errors=True)
            disk.restart()
            (disk.root / "train.py").write_text(SCRIPT)
        pair = [
            start_python(
                *("-m", "kubetrain_trainer.pytorch_ddp.own_code", "--data-dir", ".", "--output-dir", "run"),
                *("--entry", '{"script": "train.py"}', "--metrics-port", 0),
                cwd=disk.root,
                **variables_of("pytorch", ports, rank),
                **disk.variables,
            )
            for rank, disk in enumerate(disks)
        ]
        seen.append([process.communicate(timeout=120)[0] for process in pair])
    assert [process.returncode for process in pair] == [0, 0], seen
    assert all("found ['manifest.json', 'part-0', 'part-1']" in log for log in seen[1])
    keys = [item.key for item in open_store(f"s3://{bucket}/outputs/run", s3.url).list()]
    assert sorted(key.rpartition("/")[2] for key in keys if key.startswith("export/")) == [
        "manifest.json",
        "model-0",
        "model-1",
    ]
