"""The pretrained model of both trainings: one of the hub by its name, or a folder, which needs no network.

python pretrained.py DIR     writes a small model with random weights, to try them with
"""

import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTConfig, ViTForImageClassification
from transformers import ViTImageProcessor as Processor

CLASSES = 10
SIZES = {"image_size": 8, "patch_size": 4, "hidden_size": 64, "intermediate_size": 128}


def load(name: str) -> tuple[Any, Any]:
    """Return the model, with a new last layer for our classes, and what turns images into its inputs.

    Args:
        name: A model of the hub, such as google/vit-base-patch16-224, or a folder; empty: a small, random one.
    """
    if not name:
        return small()
    is_here = Path(name).is_dir()
    model = AutoModelForImageClassification.from_pretrained(
        name, num_labels=CLASSES, ignore_mismatched_sizes=True, local_files_only=is_here
    )
    return model, AutoImageProcessor.from_pretrained(name, local_files_only=is_here)


def small() -> tuple[Any, Any]:
    torch.manual_seed(1)
    config = ViTConfig(**SIZES, num_hidden_layers=2, num_attention_heads=4, initializer_range=0.1, num_labels=CLASSES)
    return ViTForImageClassification(config), Processor(size={"height": 8, "width": 8})


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python pretrained.py DIR")
    for part in small():
        part.save_pretrained(sys.argv[1])
