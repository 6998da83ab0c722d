"""PyTorch Lightning on the digits, by the processes that kubetrain starts.

From this folder:

    kubetrain run --code . --set train.entry=train.py
"""

import os
from argparse import ArgumentParser
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchmetrics.classification import MulticlassAccuracy
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import Compose, Grayscale, ToDtype, ToImage

from kubetrain_trainer import session
from kubetrain_trainer.callbacks.lightning import SessionCallback, processes

DATA = Path(os.environ["KUBETRAIN_DATA"])
READ = Compose([ToImage(), Grayscale(), ToDtype(torch.float32, scale=True)])


class Digits(LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.network = nn.Sequential(
            nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 10)
        )
        self.val_accuracy, self.test_accuracy = (MulticlassAccuracy(10, average="micro") for _ in range(2))

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self._measure("val_accuracy", self.val_accuracy, *batch)

    def test_step(self, batch: list[Tensor], _: int) -> None:
        self._measure("accuracy", self.test_accuracy, *batch)

    def _measure(self, name: str, accuracy: MulticlassAccuracy, images: Tensor, labels: Tensor) -> None:
        accuracy(self.network(images), labels)
        self.log(name, accuracy)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def load(split: str) -> DataLoader:
    images = ImageFolder(DATA / split, READ)
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if split == "train":
        return DataLoader(images, batch_size=32, sampler=DistributedSampler(images, count, rank))
    # A DistributedSampler would count some images twice, to give each process as many.
    return DataLoader(Subset(images, range(rank, len(images), count)), batch_size=32)


arguments = ArgumentParser()
arguments.add_argument("--epochs", type=int, default=3)

seed_everything(1)
callback = SessionCallback()
trainer = Trainer(
    strategy="ddp",
    use_distributed_sampler=False,
    **processes(),
    max_epochs=arguments.parse_args().epochs,
    callbacks=[callback],
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
    log_every_n_steps=5,
)
train, val, test = map(load, ("train", "val", "test"))
model = Digits()
model.network(torch.zeros(1, 1, 8, 8))
trainer.fit(model, train, val, ckpt_path=callback.resume(trainer), weights_only=True)
trainer.test(model, test, verbose=False)
session.finish(lambda folder: torch.save(model.state_dict(), folder / "model.pt"), trainer.callback_metrics)
