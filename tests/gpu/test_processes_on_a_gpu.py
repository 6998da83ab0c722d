"""Two processes that train together by NCCL, as if on two hosts: on one host NCCL lets no two share a GPU."""

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import kubetrain_trainer
from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
]
TRAINER = Path(kubetrain_trainer.__file__).parent.parent
MODELS = TRAINER.parent / "benchmarks" / "gpu"
TINY = {"layers": 2, "width": 64, "heads": 2, "vocabulary": 256, "context": 64}
SETTINGS = {
    "model": "language_model:build",
    "model_args": json.dumps(TINY),
    "synthetic": '{"samples": 512}',
    "batch_size": "8",
    "global_batch_size": "16",
    "epochs": "4",
    "optimizer": "adamw",
    "learning_rate": "0.003",
    "lr_scaling": "none",
    "metric": "loss",
    "checkpoint_every": "32",
    "keep_checkpoints": "9",
    "log_every": "1",
    "metrics_port": "0",
}


def train(output: Path, processes: int = 2, **changes: str) -> None:
    flags = [part for name, value in (SETTINGS | changes).items() for part in (f"--{name.replace('_', '-')}", value)]
    places = ("--data-dir", str(output.parent), "--output-dir", str(output))
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    common |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "PYTHONPATH": f"{TRAINER}:{MODELS}"}
    started = [
        subprocess.Popen(
            [sys.executable, "-m", "kubetrain_trainer.pytorch_ddp.train", *places, *flags],
            env={
                **os.environ,
                **common,
                **{"RANK": str(rank), "NODE_NAME": f"node-{rank}", "NCCL_HOSTID": f"host-{rank}"},
                **{"NCCL_SOCKET_IFNAME": "lo", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": f"{output.parent}/nccl-%p"},
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(processes)
    ]
    for process in started:
        printed, _ = process.communicate(timeout=200)
        assert process.returncode == 0, printed


def losses(output: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(output / "metrics.jsonl") if "loss" in row]


def test_a_sharded_training_has_the_losses_of_a_whole_one_and_is_resumed_by_one_process(tmp_path: Path) -> None:
    train(tmp_path / "whole")
    train(tmp_path / "sharded", sharding="full", activation_checkpointing="true")
    expected = losses(tmp_path / "whole")
    assert expected[-1] < expected[0] / 2
    assert losses(tmp_path / "sharded") == pytest.approx(expected, rel=0.02)

    (tmp_path / "sharded/result.json").unlink()
    [*_, middle, last] = complete_checkpoints(TrainingOutput(tmp_path / "sharded").checkpoints)
    assert len(middle.manifest["files"]) == 2
    shutil.rmtree(last.path)
    train(tmp_path / "sharded", processes=1, sharding="full")
    assert losses(tmp_path / "sharded") == pytest.approx(expected, rel=0.02)


def test_a_compiled_sharded_model_learns(tmp_path: Path) -> None:
    train(tmp_path / "run", sharding="full", compile="default")
    first, *_, last = losses(tmp_path / "run")
    assert last < first / 2


def test_gradients_all_reduced_in_bf16_train_alike(tmp_path: Path) -> None:
    train(tmp_path / "fp32")
    train(tmp_path / "bf16", allreduce_precision="bf16")
    assert losses(tmp_path / "bf16") == pytest.approx(losses(tmp_path / "fp32"), rel=0.05)


def test_the_result_says_how_the_processes_were_connected_and_what_the_preflight_measured(tmp_path: Path) -> None:
    train(tmp_path / "run", max_steps="2")
    result = TrainingOutput(tmp_path / "run").read_result() or {}
    assert re.match(r"NCCL 2\.\S+ \(between pods NET/Socket over lo; \d+ channels\)", result["network"])
    assert result["preflight"].startswith("2 devices, 1 link between nodes at ")
