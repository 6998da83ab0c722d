"""Models that are split over the processes: the same training, in less memory, with any number of processes."""

import re
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kubetrain_trainer.output.checkpoint_layout import Checkpoint, complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.pytorch_ddp.state_files import joined, read_files
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start_ranks
from support.training import TRAIN_AND_EVALUATE, assert_same, copy_killed_at, newest

pytestmark = pytest.mark.slow
TASK = """
import os
import torch
from torch import nn
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel
from torch.nn import functional
from kubetrain_trainer import Task

class Words:
    def __len__(self):
        return 37
    def __getitem__(self, index):
        words = torch.arange(index, index + 6) * 7 % 11
        return words, words[0]

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.wide, self.narrow = nn.LayerNorm(6), nn.Linear(6, 14), nn.Linear(14, 6)
        self.scale = Scale()
    def forward(self, states):
        return states + self.scale(self.narrow(torch.relu(self.wide(self.norm(states)))))

class Scale(nn.Module):
    def __init__(self):
        super().__init__()
        self.factor = nn.Parameter(torch.ones(1))  # smaller than the number of processes
    def forward(self, states):
        return self.factor * states
    def reset_parameters(self):
        nn.init.ones_(self.factor)

class Model(nn.Module):
    def __init__(self, normalized, counts):
        super().__init__()
        self.words = nn.Embedding(11, 6)
        self.layers = nn.ModuleList(Layer() for _ in range(2))
        self.counts = counts
        if counts:
            self.register_buffer("total", torch.randn(()))
        self.batch_norm = nn.BatchNorm1d(6) if normalized else nn.Identity()
        self.scores = nn.Linear(6, 11)
    def forward(self, words):
        states = self.words(words)
        for layer in self.layers:
            states = layer(states)
        if self.counts:
            if self.training:
                self.total += words.sum() / 1000  # of this process's samples
            states = states * torch.sigmoid(self.total)
        return self.scores(self.batch_norm(states.mean(1)))

def build(config, data_dir):
    def loss(outputs, targets):
        return functional.cross_entropy(outputs, targets, reduction="none")
    arguments = config.model_args
    if arguments.get("counts"):
        torch.manual_seed(int(os.environ["RANK"]))  # each process starts with other values
    with torch.device(arguments.get("device", "cpu")):
        model = Model(arguments.get("normalized", False), arguments.get("counts", False))
    return Task(
        model=model,
        data=lambda split: Words(),
        loss=loss,
        tensor_plan={"layers.*.wide": ColwiseParallel(), "layers.*.narrow": RowwiseParallel()},
        broadcast_buffers=True if arguments.get("counts") else None,
    )
"""
TRAIN = TRAIN_AND_EVALUATE.replace("PACKAGE", "pytorch_ddp")
SETTINGS: dict[str, Any] = {
    "model": "words:build",
    "precision": "fp32",
    "metric": "loss",
    "optimizer": "adamw",
    "learning_rate": 0.01,
    "lr_scaling": "none",
    "global_batch_size": 16,
    "batch_size": 4,
    "epochs": 5,
    "ema_decay": 0.5,
    "clip_norm": 0.5,
    "log_every": 1,
    "checkpoint_every": 2,
    "keep_checkpoints": 20,
    "metrics_port": 0,
}


def begin(
    folder: Path, world_size: int, trainings: dict[str, dict[str, Any]], program: str = TRAIN, **environment: str
) -> list[Any]:
    (folder / "words.py").write_text(TASK)
    configs = {name: TrainConfig.from_dict({**SETTINGS, **changes}) for name, changes in trainings.items()}
    return start_ranks(program, folder, world_size, configs, **{"EVALUATES": "0", **environment})


def run(folder: Path, world_size: int, trainings: dict[str, dict[str, Any]], **environment: str) -> None:
    for process in begin(folder, world_size, trainings, **environment):
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text


SPOILED = """
import errno, os
from kubetrain_trainer.pytorch_ddp import checkpoint
save_state = checkpoint.save_state
def full(state, path):
    if os.environ["RANK"] == os.environ["FAILS"] and "00000006" in str(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    save_state(state, path)
checkpoint.save_state = full
"""
LOST = """
import os, signal
from kubetrain_trainer.pytorch_ddp import checkpoint
save_state = checkpoint.save_state
def lost(state, path):
    if os.environ["RANK"] == os.environ["DIES"] and "00000006" in str(path):
        os.kill(os.getpid(), signal.SIGKILL)
    save_state(state, path)
checkpoint.save_state = lost
"""
HANGS = """
import os, signal
from kubetrain_trainer.output import checkpoint_writer
from kubetrain_trainer.pytorch_ddp import checkpoint
checkpoint_writer.TIMEOUT_SECONDS = 1000 if os.environ["RANK"] == "0" else 5
save = checkpoint.save_state
def hangs(state, path):
    while os.environ["RANK"] == "1" and "00000006" in str(path):
        signal.pause()
    save(state, path)
checkpoint.save_state = hangs
"""
SLOW = """
import os, time
from kubetrain_trainer.output import checkpoint_writer
from kubetrain_trainer.pytorch_ddp import checkpoint, train
save_state, take_step = checkpoint.save_state, train.take_step
def slow(state, path):
    while os.environ["RANK"] == "1" and "00000006" in str(path) and not os.path.exists("failed"):
        time.sleep(0.01)
    save_state(state, path)
def failing(training, inputs, targets, batch, step, factor):
    if step == 7 and os.environ["RANK"] == "0":
        open("failed", "w").close()
        raise ValueError("of the training")
    return take_step(training, inputs, targets, batch, step, factor)
checkpoint.save_state, train.take_step = slow, failing
"""
SHORT_OF_MEMORY = """
import os, time
from kubetrain_trainer.pytorch_ddp import checkpoint, staging
staging.free_memory = lambda: 0 if os.environ["RANK"] == "0" else None
save_state = checkpoint.save_state
def slow(state, path):
    if os.environ["RANK"] == "0" and "00000004" in str(path):
        time.sleep(8)
    save_state(state, path)
checkpoint.save_state = slow
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of one process with the whole model."""
    folder = tmp_path_factory.mktemp("whole")
    run(folder, 1, {"whole": {}})
    return folder / "whole"


def losses(output: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(TrainingOutput(output).metrics) if "loss" in row]


def validated(output: Path) -> list[float]:
    saved = complete_checkpoints(TrainingOutput(output).checkpoints)
    return [checkpoint.manifest["metrics"]["loss"] for checkpoint in saved]


def files_of(checkpoint: Checkpoint) -> list[str]:
    return [each["name"] for each in checkpoint.manifest["files"]]


def assert_same_training(output: Path, expected: Path) -> None:
    np.testing.assert_allclose(losses(output), losses(expected), rtol=1e-5, err_msg=output.name)
    np.testing.assert_allclose(validated(output), validated(expected), rtol=1e-5, err_msg=output.name)
    state, other = joined(read_files(newest(output).path)), joined(read_files(newest(expected).path))
    for part in ("model", "averages", "optimizer"):
        assert_same(state[part], other[part], tolerance=1e-5)


def test_a_sharded_training_is_the_same_with_two_three_and_one_process(whole: Path, tmp_path: Path) -> None:
    full = {"sharding": "full", "activation_checkpointing": True}
    run(tmp_path, 2, {"two": full})
    copy_killed_at(4, tmp_path / "two", tmp_path / "three")
    run(tmp_path, 3, {"three": full})
    copy_killed_at(6, tmp_path / "three", tmp_path / "one")
    run(tmp_path, 1, {"one": full})
    for name, files in (("two", 2), ("three", 3), ("one", 1)):
        assert len(files_of(newest(tmp_path / name))) == files
        assert_same_training(tmp_path / name, whole)


@pytest.mark.thorough
def test_parts_within_each_pod(whole: Path, tmp_path: Path) -> None:
    in_parts = {"batch_size": 2}  # two of each step in each process
    run(tmp_path, 4, {"hybrid": {"sharding": "hybrid", **in_parts}}, LOCAL_WORLD_SIZE="2")
    assert files_of(newest(tmp_path / "hybrid")) == ["state-00000-of-00002.pt", "state-00001-of-00002.pt"]
    assert_same_training(tmp_path / "hybrid", whole)


def test_processes_that_compute_layers_together(whole: Path, tmp_path: Path) -> None:
    together = {"sharding": "full", "tensor_parallel": 2}
    run(tmp_path, 4, {"together": together})
    copy_killed_at(4, tmp_path / "together", tmp_path / "two")
    copy_killed_at(6, tmp_path / "together", tmp_path / "sharded")
    run(tmp_path, 2, {"two": together, "sharded": {"sharding": "full"}})
    for name in ("together", "two", "sharded"):
        assert_same_training(tmp_path / name, whole)


@pytest.mark.parametrize(
    ("processes", "pod"), [(4, "2"), pytest.param(8, "4", marks=pytest.mark.thorough)], ids=["whole", "part"]
)
def test_pods_that_each_compute_layers_together(processes: int, pod: str, whole: Path, tmp_path: Path) -> None:
    """Each process has a whole part of its layers, or a part of that."""
    run(tmp_path, processes, {"hybrid": {"sharding": "hybrid", "tensor_parallel": 2}}, LOCAL_WORLD_SIZE=pod)
    assert len(files_of(newest(tmp_path / "hybrid"))) == int(pod)
    assert_same_training(tmp_path / "hybrid", whole)


@pytest.mark.thorough
def test_compiled_layers(whole: Path, tmp_path: Path) -> None:
    run(tmp_path, 2, {"compiled": {"sharding": "full", "compile": "default"}})
    assert_same_training(tmp_path / "compiled", whole)


def test_the_values_of_rank_0_are_sent_at_the_start_and_its_buffers_at_each_step(tmp_path: Path) -> None:
    settings = {"model_args": {"counts": True}}
    run(tmp_path, 2, {"whole": settings, "sharded": {**settings, "sharding": "full"}})
    assert_same_training(tmp_path / "sharded", tmp_path / "whole")


@pytest.mark.thorough
def test_a_run_may_change_how_it_is_sharded(whole: Path, tmp_path: Path) -> None:
    copy_killed_at(4, whole, tmp_path / "sharded")
    run(tmp_path, 2, {"sharded": {"sharding": "full"}})
    copy_killed_at(6, tmp_path / "sharded", tmp_path / "again")
    run(tmp_path, 2, {"again": {}})
    assert_same_training(tmp_path / "again", whole)


@pytest.mark.thorough
def test_a_run_with_the_default_optimizer_may_change_how_it_is_sharded(tmp_path: Path) -> None:
    settings = {"optimizer": "sgd", "optimizer_args": {"momentum": 0.9}}
    run(tmp_path, 1, {"whole": settings})
    copy_killed_at(4, tmp_path / "whole", tmp_path / "sharded")
    run(tmp_path, 2, {"sharded": {**settings, "sharding": "full"}})
    copy_killed_at(6, tmp_path / "sharded", tmp_path / "again")
    np.testing.assert_allclose(losses(tmp_path / "sharded"), losses(tmp_path / "whole"), rtol=1e-5)
    run(tmp_path, 2, {"again": settings})
    assert_same_training(tmp_path / "again", tmp_path / "whole")


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=pytest.mark.thorough), "bf16"])
def test_statistics_and_reduced_precision(precision: str, tmp_path: Path) -> None:
    settings = {"precision": precision, "model_args": {"normalized": True}}
    run(tmp_path, 2, {"whole": settings, "sharded": {**settings, "sharding": "full"}})
    tolerance = 1e-5 if precision == "fp32" else 0.02
    np.testing.assert_allclose(losses(tmp_path / "sharded"), losses(tmp_path / "whole"), rtol=tolerance)


def test_a_model_without_content_gets_the_same_weights_in_every_process(tmp_path: Path) -> None:
    settings = {"sharding": "full", "model_args": {"device": "meta"}}
    run(tmp_path, 2, {"two": settings})
    run(tmp_path, 3, {"three": settings})
    assert_same_training(tmp_path / "three", tmp_path / "two")


@pytest.mark.parametrize("fails", [pytest.param(0, marks=pytest.mark.thorough), 1])
def test_a_part_that_cannot_be_written_fails_the_training_and_keeps_the_checkpoint_before(
    fails: int, whole: Path, tmp_path: Path
) -> None:
    processes = begin(tmp_path, 2, {"full": {"sharding": "full"}}, SPOILED + TRAIN, FAILS=str(fails))
    (rank_0, _), _ = (process.communicate(timeout=120) for process in processes)
    assert all(process.returncode != 0 for process in processes)
    assert "No space left on device" in rank_0
    assert "free space on this volume or enlarge it" in rank_0
    if fails:
        assert "rank 1 could not write" in rank_0
    assert newest(tmp_path / "full").step == 4

    run(tmp_path, 2, {"full": {"sharding": "full"}})
    state, expected = (joined(read_files(newest(output).path)) for output in (tmp_path / "full", whole))
    assert_same(state["model"], expected["model"], tolerance=1e-5)


@pytest.mark.parametrize("dies", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_a_process_lost_while_it_writes_its_part_ends_the_training_and_keeps_the_checkpoint_before(
    dies: int, whole: Path, tmp_path: Path
) -> None:
    settings = {"full": {"sharding": "full", "nccl_timeout_seconds": 20}}
    for process in begin(tmp_path, 2, settings, LOST + TRAIN, DIES=str(dies)):
        text, _ = process.communicate(timeout=100)
        assert process.returncode != 0, text
    assert newest(tmp_path / "full").step == 4

    run(tmp_path, 2, settings)
    assert_same_training(tmp_path / "full", whole)


@pytest.mark.thorough
def test_rank_0_waits_for_no_shard_of_a_checkpoint_once_a_process_is_lost(tmp_path: Path) -> None:
    lost_and_hangs = HANGS + LOST + TRAIN
    processes = begin(tmp_path, 3, {"full": {"sharding": "full"}}, lost_and_hangs, DIES="2")
    text, _ = processes[0].communicate(timeout=100)
    assert processes[0].returncode != 0
    assert re.search("in step [78]", text), text
    assert newest(tmp_path / "full").step == 4
    assert processes[1].wait(60) not in (0, -signal.SIGKILL)
    assert processes[2].wait(60) == -signal.SIGKILL


def test_a_training_that_fails_waits_for_a_slow_part_of_its_checkpoint(tmp_path: Path) -> None:
    processes = begin(tmp_path, 2, {"full": {"sharding": "full"}}, SLOW + TRAIN)
    (text, _), _ = (process.communicate(timeout=100) for process in processes)
    assert "ValueError: of the training" in text
    assert newest(tmp_path / "full").step == 6


def test_sigterm_in_one_process_saves_the_parts_of_all(tmp_path: Path) -> None:
    endless = {"sharding": "full", "epochs": 100000, "checkpoint_every": 1000000, "keep_checkpoints": 2}
    processes = begin(tmp_path, 2, {"full": endless})
    while "step=3" not in processes[0].stdout.readline():
        assert processes[0].poll() is None
    processes[1].send_signal(signal.SIGTERM)
    for process in processes:
        text, _ = process.communicate(timeout=60)
        assert process.returncode != 0, text
    stopped = newest(tmp_path / "full")
    assert len(files_of(stopped)) == 2
    assert not stopped.is_validated
    assert [path.name for path in stopped.path.parent.iterdir()] == [stopped.name]


@pytest.mark.parametrize("sharding", [pytest.param("none", marks=pytest.mark.thorough), "full"])
def test_without_memory_for_a_copy_all_wait_until_the_state_is_written(
    sharding: str, whole: Path, tmp_path: Path
) -> None:
    short = {"sharding": sharding, "nccl_timeout_seconds": 2}
    for process in begin(tmp_path, 2, {"short": short}, SHORT_OF_MEMORY + TRAIN):
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text
    state, expected = (joined(read_files(newest(output).path)) for output in (tmp_path / "short", whole))
    assert_same(state["model"], expected["model"], tolerance=1e-5)
