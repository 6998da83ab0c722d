"""Images per second of ResNet-50 on images that the GPU holds: the textbook script, kubetrain as it comes, compiled."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from figures import Figure, run
from launches import printed_rate
from trainings import gpu_memory, rate, train

TEXTBOOK = Path(__file__).parent.parent / "trainers" / "textbook_pytorch.py"
UNTIMED_STEPS = 20
"""Steps in which cuDNN chooses its algorithms, the loading processes start, or the model is compiled."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    model: str = "resnet50"
    pixels: int = 224
    batch: int = 256
    steps: int = 80


MINIATURE = Sizes(model="resnet18", pixels=32, batch=4, steps=10)


def measure(miniature: bool) -> Iterator[Figure]:
    sizes = MINIATURE if miniature else Sizes()
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder)
        fp32 = textbook(sizes, "device", {"NVIDIA_TF32_OVERRIDE": "0"}, steps=max(sizes.steps // 4, 5))
        yield images("textbook script in fp32", fp32)
        tf32 = textbook(sizes, "device", {})
        yield images("textbook script as it comes, with TF32 in convolutions", tf32)
        yield images("kubetrain, precision=fp32, with TF32", ours(sizes, place / "fp32", precision="fp32"))
        as_it_comes = ours(sizes, place / "bf16")
        yield images("**kubetrain as it comes**", as_it_comes, at_least=2700)
        yield Figure(what="… compared with the textbook script in fp32", value=as_it_comes / fp32, at_least=2.5)
        yield Figure(what="… compared with the textbook script as it comes", value=as_it_comes / tf32, at_least=2.5)
        yield Figure(what="… most memory that PyTorch took", value=gpu_memory(place / "bf16"), unit="GB")
        yield images("kubetrain, precision=fp16", ours(sizes, place / "fp16", precision="fp16"))
        yield images("kubetrain, compile=default", ours(sizes, place / "compiled", compile="default"))


def images(what: str, value: float, at_least: float | None = None) -> Figure:
    return Figure(what=what, value=value, unit="images/s", at_least=at_least)


def textbook(sizes: Sizes, source: str, environment: dict[str, str], steps: int = 0) -> float:
    settings = map(str, (sizes.model, sizes.pixels, sizes.batch, steps or sizes.steps, source))
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
    result = subprocess.run(
        [*torchrun, str(TEXTBOOK), *settings], env={**os.environ, **environment}, check=True, stdout=subprocess.PIPE
    )
    return printed_rate([result.stdout.decode()])


def ours(sizes: Sizes, output: Path, data_dir: Path | None = None, **settings: Any) -> float:
    defaults: dict[str, Any] = {
        "model": "resident:build",
        "model_args": {"name": sizes.model} if "model" not in settings else {},
        "image_size": sizes.pixels,
        "batch_size": sizes.batch,
        "synthetic": {"samples": sizes.batch * (sizes.steps + UNTIMED_STEPS)},
        "max_steps": sizes.steps + UNTIMED_STEPS,
        "epochs": 1,
        "checkpoint_every": 10 * (sizes.steps + UNTIMED_STEPS),
        "metrics_port": 0,
    }
    train(defaults | settings, output, data_dir)
    return rate(output, UNTIMED_STEPS)


if __name__ == "__main__":
    run(measure)
