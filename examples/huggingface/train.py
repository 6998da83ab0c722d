"""Fine-tune a pretrained model on images, by Hugging Face's Trainer in the processes that kubetrain starts.

From this folder:

    kubetrain run --code . --set train.entry=train.py

README.md names a model of the hub, or a folder.
"""

import os
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import torch
from pretrained import load
from torch.utils.data import Dataset
from torchvision.datasets import ImageFolder
from transformers import EvalPrediction, Trainer, TrainingArguments, set_seed

from kubetrain_trainer import session
from kubetrain_trainer.callbacks.transformers import SessionCallback

DATA, OUTPUT = Path(os.environ["KUBETRAIN_DATA"]), Path(os.environ["KUBETRAIN_OUTPUT"])


class Images(Dataset[dict[str, Any]]):
    def __init__(self, split: str, processor: Any) -> None:
        self._images = ImageFolder(DATA / split)
        self._processor = processor

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> dict[str, Any]:
        image, label = self._images[index]
        return {"pixel_values": self._processor(image, return_tensors="pt")["pixel_values"][0], "labels": label}


def accuracy(seen: EvalPrediction) -> dict[str, float]:
    return {"accuracy": (seen.predictions.argmax(axis=1) == seen.label_ids).mean()}


parser = ArgumentParser()
parser.add_argument("--model", default="", help="a model of the hub or a folder; default: a small one without training")
parser.add_argument("--epochs", type=int, default=3)
parser.add_argument("--learning-rate", type=float, default=3e-3)
arguments = parser.parse_args()

set_seed(1)
model, processor = load(arguments.model)
train, val, test = (Images(split, processor) for split in ("train", "val", "test"))
callback = SessionCallback()
trainer = Trainer(
    model,
    TrainingArguments(
        output_dir=str(OUTPUT / "trainer"),  # shared by all pods
        num_train_epochs=arguments.epochs,
        per_device_train_batch_size=32,
        learning_rate=arguments.learning_rate,
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
    processing_class=processor,
    compute_metrics=accuracy,
    callbacks=[callback],
)
trainer.train(resume_from_checkpoint=callback.resume())
measured = trainer.evaluate(test, metric_key_prefix="test")
session.finish(trainer.save_model, {"accuracy": measured["test_accuracy"]})
