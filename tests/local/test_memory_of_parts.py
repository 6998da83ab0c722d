"""The memory of a process that holds a part of a model."""

from pathlib import Path
from typing import Any

import pytest

from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start_ranks
from support.training import TRAIN_AND_EVALUATE

pytestmark = pytest.mark.slow
WIDTH, LAYERS, PROCESSES = 1024, 64, 2
NUMBERS_EACH = 4
"""For each weight: itself, its gradient, and AdamW's two averages."""
PART = LAYERS * WIDTH**2 * NUMBERS_EACH * 4 // PROCESSES
LIBRARIES = 130 << 20
"""What PyTorch's libraries take in the course of a training, with a model of any size."""
TASK = f"""
import torch
from torch import nn
from kubetrain_trainer import Task

class Points:
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.ones({WIDTH}), 0

def build(config, data_dir):
    with torch.device("meta"):
        model = nn.Sequential(*(nn.Linear({WIDTH}, {WIDTH}, bias=False) for _ in range({LAYERS})))
    return Task(model=model, data=lambda split: Points(), loss=lambda outputs, targets: outputs.square().mean(1))
"""
MEASURED = """
import os, threading, time
from functools import partial
from pathlib import Path
from kubetrain_trainer.pytorch_ddp import export, staging, train

staging.free_memory = lambda: 0  # of which a copy of the state would take a part
export.write_safetensors = partial(export.write_safetensors, largest=1 << 24)  # 2 GiB are small for a large model only
build_training = train.build_training

def allocated():
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon", "RssShmem")))

def follow(first):
    peak, path = 0, Path(f"peak-{os.environ['RANK']}")
    while True:
        if (now := allocated() - first) > peak:
            peak = now
            path.with_suffix(".new").write_text(str(peak))
            path.with_suffix(".new").rename(path)
        time.sleep(0.005)

def build(*arguments):
    threading.Thread(target=follow, args=[allocated()], daemon=True).start()
    return build_training(*arguments)

train.build_training = build
"""
PROGRAM = MEASURED + TRAIN_AND_EVALUATE.replace("PACKAGE", "pytorch_ddp")
SETTINGS: dict[str, Any] = {
    **{"model": "wide:build", "sharding": "full", "optimizer": "adamw", "metric": "loss", "batch_size": 2},
    **{"select_checkpoint": "last", "checkpoint_every": 1, "metrics_port": 0},
}


@pytest.mark.thorough
def test_no_stage_holds_much_more_than_a_part(tmp_path: Path) -> None:
    run(tmp_path, "first", max_steps=1)
    assert_within_a_part(tmp_path)
    run(tmp_path, "second", max_steps=2, resume_from="first")
    assert_within_a_part(tmp_path)


def run(folder: Path, name: str, **settings: Any) -> None:
    (folder / "wide.py").write_text(TASK)
    configs = {name: TrainConfig.from_dict({**SETTINGS, **settings})}
    processes = start_ranks(PROGRAM, folder, PROCESSES, configs, EVALUATES="none")
    for process in processes:
        text, _ = process.communicate(timeout=120)
        assert process.returncode == 0, text


def assert_within_a_part(folder: Path) -> None:
    for rank in range(PROCESSES):
        peak = int((folder / f"peak-{rank}").read_text())
        assert 0.9 * PART < peak < 1.2 * PART + LIBRARIES, f"rank {rank}: {peak / PART:.2f} times its part"
