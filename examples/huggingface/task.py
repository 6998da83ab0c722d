"""Fine-tune a pretrained model on images, in kubetrain's own loop: the same model as a Task.

From this folder:

    kubetrain run --code . --set model.name=task:build --set train.optimizer=adamw --set train.learning_rate=0.003

README.md names a model of the hub, or a folder.
"""

from functools import partial
from pathlib import Path
from typing import Any

from pretrained import load
from torch import Tensor
from torch.nn import functional
from torchvision.datasets import ImageFolder

from kubetrain_trainer import Task, TrainConfig


def build(config: TrainConfig, data_dir: Path) -> Task:
    """Build the task; `model.args` may name the model, as {"model": "google/vit-base-patch16-224"}."""
    model, processor = load(config.model_args.get("model", ""))
    return Task(
        model=model,
        data=lambda split: ImageFolder(data_dir / split, partial(pixels, processor)),
        loss=lambda outputs, labels: functional.cross_entropy(outputs.logits, labels, reduction="none"),
        metrics={"accuracy": lambda outputs, labels: (outputs.logits.argmax(1) == labels).float()},
    )


def pixels(processor: Any, image: Any) -> Tensor:
    read: Tensor = processor(image, return_tensors="pt")["pixel_values"][0]
    return read
