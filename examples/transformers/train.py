"""A small vision transformer on the digits, by Hugging Face's Trainer in the processes that kubetrain starts.

From this folder:

    kubetrain run --code . --set train.entry=train.py
"""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import Compose, Grayscale, ToDtype, ToImage
from transformers import EvalPrediction, Trainer, TrainingArguments, ViTConfig, ViTForImageClassification, set_seed

from kubetrain_trainer import session
from kubetrain_trainer.callbacks.transformers import SessionCallback

DATA, OUTPUT = Path(os.environ["KUBETRAIN_DATA"]), Path(os.environ["KUBETRAIN_OUTPUT"])
READ = Compose([ToImage(), Grayscale(), ToDtype(torch.float32, scale=True)])
CONFIG = ViTConfig(
    image_size=8,
    patch_size=4,
    num_channels=1,
    num_labels=10,
    hidden_size=64,
    intermediate_size=128,
    num_hidden_layers=2,
    num_attention_heads=4,
    initializer_range=0.1,
)


class Digits(Dataset[dict[str, Any]]):
    def __init__(self, split: str) -> None:
        self._images = ImageFolder(DATA / split, READ)

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = self._images[index]
        return {"pixel_values": image, "labels": label}


def accuracy(seen: EvalPrediction) -> dict[str, float]:
    return {"accuracy": (seen.predictions.argmax(axis=1) == seen.label_ids).mean()}


arguments = ArgumentParser()
arguments.add_argument("--epochs", type=int, default=3)

train, val, test = map(Digits, ("train", "val", "test"))
set_seed(1)
callback = SessionCallback()
trainer = Trainer(
    ViTForImageClassification(CONFIG),  # or from_pretrained() with a folder of the image or the dataset
    TrainingArguments(
        output_dir=str(OUTPUT / "trainer"),  # shared by all pods
        num_train_epochs=arguments.parse_args().epochs,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        logging_steps=5,
        eval_strategy="epoch",
        save_strategy="epoch",
        save_total_limit=1,
        disable_tqdm=True,
        report_to="none",
        use_cpu=not torch.cuda.is_available(),
    ),
    train_dataset=train,
    eval_dataset=val,
    compute_metrics=accuracy,
    callbacks=[callback],
)
trainer.train(resume_from_checkpoint=callback.resume())
measured = trainer.evaluate(test, metric_key_prefix="test")
session.finish(trainer.save_model, {"accuracy": measured["test_accuracy"]})
