"""Training on shards that stay in S3, through a cache that is smaller than they are."""

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.local.process_guard import process_guard
from kubetrain_components.object_store.open_store import open_store
from kubetrain_components.object_store.store import ObjectStore
from kubetrain_components.serve_shards.serve import serving
from kubetrain_pipelines.local_run.embedded_s3 import EmbeddedS3
from kubetrain_trainer.data.sampling import plan_samples
from kubetrain_trainer.data.shard_cache import VARIABLE
from kubetrain_trainer.data.tar_shards import groups_of, list_images
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from support.cli import processes_of, read_until, run_json, start
from support.disk import file_sizes
from support.faulty_s3 import FaultyS3
from support.packed_digits import packed_files, synced
from support.tiers import ONE_IN_CI
from support.training import newest

CACHE_GB = 0.0012
"""In which 60 of 200 shards fit, 45 of them for the training."""
CACHE_BYTES = int(CACHE_GB * 1e9)
CONFIG: dict[str, Any] = {"data": "tar_shards", "data_access": "cache", "cache_gb": CACHE_GB, "metrics_port": 0}
SETTINGS = (
    "data.format=tar_shards",
    "data.delivery=cache",
    f"data.cache_gb={CACHE_GB}",
    "train.log_every=5",
    "train.loader_workers=0",
)

pytestmark = pytest.mark.slow


@pytest.fixture
def store(digits: Path, tmp_path: Path, bucket: str, s3: EmbeddedS3) -> ObjectStore:
    store = open_store(f"s3://{bucket}/digits", s3.url)
    for key, path in packed_files(digits, tmp_path / "packed"):
        store.write(key, path)
    return store


def run_arguments(framework: str, store: ObjectStore, url: str, workspace: Path, *settings: str) -> list[str]:
    places = (f"data.uri={store.uri}", f"data.endpoint={url}", f"model.uri={workspace / 'models'}")
    pairs = chain.from_iterable(("--set", each) for each in (*places, *SETTINGS, *settings))
    return ["run", f"train-{framework}", "--workspace", str(workspace), *pairs]


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_run_trains_and_evaluates_within_its_cache(
    framework: str, store: ObjectStore, s3: EmbeddedS3, tmp_path: Path
) -> None:
    run = start(*run_arguments(framework, store, s3.url, tmp_path / "workspace", "train.epochs=10"))
    most, shards = 0, 0
    while run.poll() is None:
        caches = (tmp_path / "workspace").glob("shard-cache-*")
        sizes = list(chain.from_iterable(map(file_sizes, caches)))
        most, shards = max(most, sum(sizes)), max(shards, len(sizes))
        with suppress(subprocess.TimeoutExpired):
            run.wait(0.01)
    output = run.stdout.read() if run.stdout else ""
    assert run.returncode == 0, output
    record = run_json(tmp_path / "workspace")
    assert record["evaluation"]["accuracy"] >= 0.95
    assert record["evaluation"]["samples"] == 270
    assert record["training"]["world_size"] == 2
    assert shards > 20
    assert 0.25 * CACHE_BYTES < most <= CACHE_BYTES
    assert not list((tmp_path / "workspace").rglob("*.tar"))
    assert not list((tmp_path / "workspace").glob("*shard-cache-*"))
    [metrics] = (tmp_path / "workspace" / "output").glob("*/metrics.jsonl")
    rows = [row for row in read_metrics(metrics) if "loss" in row]
    epochs = rows[-1]["epoch"]
    assert 140 <= rows[-1]["shards_fetched"] < 2 * epochs * 170, "not much more than once in each epoch"
    # TensorFlow asks for images as fast as it can, because it loads as far ahead as it likes.
    assert rows[-1]["shard_waits"] < (0.25 if framework == "pytorch" else 0.5) * rows[-1]["shards_fetched"]


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_shard_that_changes_stops_the_training_by_name(
    framework: str, store: ObjectStore, s3: EmbeddedS3, tmp_path: Path
) -> None:
    run = start(*run_arguments(framework, store, s3.url, tmp_path / "workspace", "train.epochs=1000"))
    log = tmp_path / "workspace" / "logs" / "pipeline.log"
    read_until(run, "launch_training: step")
    for number in range(140):
        store.write(f"train/train-{number:06}.tar", b"other bytes")
    rest, _ = run.communicate(timeout=120)
    assert run.returncode == 1, rest
    record = run_json(tmp_path / "workspace")
    assert f"{store.uri}/train/train-000" in record["error"]
    assert "was changed or deleted after the dataset was synced: start a new run" in record["error"]
    pod = record["error"].partition(": s3://")[0].split()[-1]
    restarted = [line for line in log.read_text().splitlines() if line.endswith("; restarting")]
    assert not [line for line in restarted if f"[{pod}]" in line], "a restart would not help"
    assert processes_of(tmp_path) == []


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_training_survives_a_server_that_dies_and_returns(
    framework: str, digits: Path, tmp_path: Path, s3_credentials: None
) -> None:
    server = FaultyS3()
    for key, path in packed_files(digits, tmp_path / "packed"):
        server.put(f"digits/{key}", path.read_bytes())
    with ExitStack() as stack:
        with server.serving() as url:
            store = open_store("s3://bucket/digits", url, was_reached=True)
            data = synced(store, tmp_path / "staging", CACHE_BYTES)
            stack.enter_context(serving(store, tmp_path / "cache", CACHE_BYTES))
            training = stack.enter_context(trainer(framework, 1, data, tmp_path, "--epochs", "3", "--log-every", "1"))
            read_until(training, "[kubetrain] step=5/")
        metrics = TrainingOutput(tmp_path / "output").metrics
        await_standstill(metrics)
        assert training.poll() is None
        stack.enter_context(server.serving(port=int(url.rpartition(":")[2])))
        rest, _ = training.communicate(timeout=120)
        assert training.returncode == 0, rest
    steps = [row["step"] for row in read_metrics(metrics) if "loss" in row]
    assert steps == list(range(1, steps[-1] + 1))
    assert steps[-1] > 100


def await_standstill(metrics: Path) -> None:
    size = -1
    while (now := metrics.stat().st_size) != size:
        size = now
        time.sleep(2)


LOGGED = """
import os
from dataclasses import replace
from pathlib import Path

from kubetrain_trainer.pytorch_ddp.images.augmented_images import AugmentedImages
from kubetrain_trainer.pytorch_ddp.task import build_task
from kubetrain_trainer.data.tar_shards import list_images

class Logged(AugmentedImages):
    def __getitem__(self, index):
        with Path(os.environ["LOG"]).open("a") as log:
            log.write(f"{index}\\n")
        return super().__getitem__(index)

def build(config, data_dir):
    task = build_task(replace(config, model="digits_cnn"), data_dir)
    return replace(task, training_data=lambda: Logged(list_images(data_dir, "train"), config))
"""


@pytest.mark.thorough
def test_a_training_resumed_by_another_number_of_processes_reads_the_samples_that_are_left(
    store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(LOGGED)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("LOG", str(tmp_path / "log"))
    data, cache = synced(store, tmp_path / "staging", CACHE_BYTES), tmp_path / "cache"
    flags = ("--model", "own:build", "--epochs", "2", "--checkpoint-every", "10", "--log-every", "5")
    flags += ("--global-batch-size", "32", "--batch-size", "16", "--image-size", "8")
    with serving(store, cache, CACHE_BYTES):
        with trainer("pytorch", 2, data, tmp_path, *flags) as killed:
            read_until(killed, "[kubetrain] step=35/")
        checkpoint = newest(tmp_path / "output")
        (tmp_path / "log").unlink()
        with trainer("pytorch", 1, data, tmp_path, *flags) as resumed:
            output, _ = resumed.communicate(timeout=120)
        assert resumed.returncode == 0, output
    assert f"resumes from {checkpoint.path}" in output
    monkeypatch.setenv(VARIABLE, str(cache))
    images = list_images(data, "train")
    config = replace(TrainConfig(**CONFIG), global_batch_size=32, batch_size=16)
    plan = plan_samples(1257, config, 1, None, groups_of(images, config))
    progress = plan.resumed(checkpoint.progress)
    left = [batch.indices for batch in plan.batches(progress.epoch, 0, progress.samples_in_epoch)]
    for epoch in range(progress.epoch + 1, 2):
        left += [batch.indices for batch in plan.batches(epoch, 0)]
    expected = list(chain.from_iterable(left))
    assert expected
    assert list(map(int, (tmp_path / "log").read_text().split()))[-len(expected) :] == expected


@contextmanager
def trainer(framework: str, processes: int, data: Path, folder: Path, *flags: str) -> Iterator["subprocess.Popen[str]"]:
    """Start a training whose processes are killed at the end of the block."""
    launch = ("-m", "kubetrain_trainer.pytorch_ddp.launching.launch", "--nproc-per-node", str(processes))
    program = {
        "pytorch": (*launch, "-m", "kubetrain_trainer.pytorch_ddp.train"),
        "tensorflow": ("-m", "kubetrain_trainer.tensorflow_multiworker.train"),
    }[framework]
    places = ("--data-dir", str(data), "--output-dir", str(folder / "output"))
    command = [sys.executable, *program, *places, *TrainConfig(**CONFIG).to_flags(), *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", VARIABLE: str(folder / "cache")}
    with process_guard(grace_seconds=0) as mark:
        yield subprocess.Popen(
            command, env={**environment, **mark}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
