"""Whole trainings on a GPU."""

import gzip
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import kubetrain_trainer
from kubetrain_trainer.processes.resources import peak_operations
from kubetrain_trainer.pytorch_ddp.model import build_model
from kubetrain_trainer.reporting.metrics_log import read_metrics

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    pytest.mark.timeout(300),
]
SYNTHETIC = (
    "data=synthetic",
    'synthetic={"samples": 500}',
    "image_size=16",
    "epochs=6",
    "checkpoint_every=20",
    "metrics_port=0",
)
COMPILED = ("compile=default", "model=torchvision:resnet18", "image_size=48", "learning_rate=0.03")
"""PyTorch 2.11 compiles no model that is an nn.Sequential."""
GRAPH = re.compile(r"\[__cudagraphs\].* Recording function")
"""What PyTorch logs when it records a graph."""


def train(output: Path, *settings: str) -> str:
    parts = (setting.split("=") for setting in settings)
    flags = [part for name, value in parts for part in (f"--{name.replace('_', '-')}", value)]
    places = ("--data-dir", str(output.parent / "data"), "--output-dir", str(output))
    trainer = Path(kubetrain_trainer.__file__).parent.parent
    result = subprocess.run(
        [sys.executable, "-m", "kubetrain_trainer.pytorch_ddp.train", *places, *flags],
        env={**os.environ, "PYTHONPATH": str(trainer)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout
    return result.stdout


def losses(output: Path) -> list[float]:
    return [row["loss"] for row in read_metrics(output / "metrics.jsonl") if "loss" in row]


def traced(output: Path) -> list[dict[str, Any]]:
    [trace] = (output / "profile").glob("*.json.gz")
    return list(json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"])


def test_a_training_uses_the_gpu_and_its_model_needs_none(tmp_path: Path) -> None:
    printed = train(tmp_path / "run", *SYNTHETIC, "profile_steps=5:6")
    assert "bf16 with TF32, " in printed
    assert torch.cuda.get_device_name() in printed
    first, *_ = read_metrics(tmp_path / "run/metrics.jsonl")
    assert first["gpu_memory_peak_bytes"] > 0
    assert 0 < first["mfu"] < 1 or not peak_operations(torch.cuda.get_device_name())
    assert 0 <= first["data_wait_share"] < 1
    assert any("checkpoint_gpu_stall_seconds" in row for row in read_metrics(tmp_path / "run/metrics.jsonl"))

    assert any(event.get("cat") == "kernel" for event in traced(tmp_path / "run"))

    state = torch.load(tmp_path / "run/export/model.pt", weights_only=True, map_location="cpu")
    model = build_model("digits_cnn", 10, {})
    model.load_state_dict(state)
    assert model.eval()(torch.zeros(1, 3, 16, 16)).isfinite().all()


@pytest.mark.parametrize("settings", [("recipe=strong",), ("recipe=standard", "loader_workers=2")])
def test_images_from_files(settings: tuple[str, ...], tmp_path: Path) -> None:
    for split, count in (("train", 64), ("val", 8), ("test", 8)):
        for index in range(count):
            path = tmp_path / "data" / split / f"class-{index % 2}" / f"{index}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            shade = 60 if index % 2 else 180
            pixels = np.random.default_rng(index).integers(shade - 40, shade + 40, (48, 48, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(path)
    train(tmp_path / "run", *settings, "image_size=32", "epochs=4", "batch_size=16", "metrics_port=0")
    accuracy = [row["validation_accuracy"] for row in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" not in row]
    assert accuracy[-1] > 0.9


@pytest.mark.parametrize("settings", [("precision=fp16",), COMPILED], ids=["fp16", "compiled"])
def test_it_learns(settings: tuple[str, ...], tmp_path: Path) -> None:
    """The last batch of an epoch is smaller than the others."""
    train(tmp_path / "run", *SYNTHETIC, *settings, "log_every=1")
    first, *_, last = losses(tmp_path / "run")
    assert last < first / 2


@pytest.mark.parametrize("accumulated", [1, 2])
def test_cuda_graphs_train_alike(accumulated: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With parts, too, whose gradients add up."""
    monkeypatch.setenv("TORCH_LOGS", "+cudagraphs")
    settings = (
        *SYNTHETIC,
        *COMPILED,
        f"gradient_accumulation={accumulated}",
        "learning_rate=0.003",
        "log_every=1",
        "max_steps=20",
    )
    assert not GRAPH.search(train(tmp_path / "compiled", *settings))
    printed = train(tmp_path / "graphs", *settings, "compile=reduce-overhead")
    assert GRAPH.search(printed), printed
    assert losses(tmp_path / "graphs") == pytest.approx(losses(tmp_path / "compiled"), rel=0.02)
