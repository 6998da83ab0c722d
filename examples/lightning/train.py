"""PyTorch Lightning on the digits, by the processes that kubetrain starts.

From this folder:

    kubetrain run --code . --set entry='{"script": "train.py"}'
"""

import os
from argparse import ArgumentParser
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader
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

    def training_step(self, batch: list[Tensor], _: int) -> Tensor:
        images, labels = batch
        loss = functional.cross_entropy(self.network(images), labels)
        self.log("loss", loss, sync_dist=True)
        return loss

    def validation_step(self, batch: list[Tensor], _: int) -> None:
        self._measure("val_accuracy", *batch)

    def test_step(self, batch: list[Tensor], _: int) -> None:
        self._measure("accuracy", *batch)

    def _measure(self, name: str, images: Tensor, labels: Tensor) -> None:
        is_right = self.network(images).argmax(dim=1) == labels
        self.log(name, is_right.float().mean(), sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=3e-3)


def load(split: str) -> DataLoader:
    return DataLoader(ImageFolder(DATA / split, READ), batch_size=32, shuffle=split == "train")


arguments = ArgumentParser()
arguments.add_argument("--epochs", type=int, default=3)

seed_everything(1)
callback = SessionCallback()
trainer = Trainer(
    strategy="ddp",
    **processes(),
    max_epochs=arguments.parse_args().epochs,
    callbacks=[callback],
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
    log_every_n_steps=5,
)
model = Digits()
model.network(torch.zeros(1, 1, 8, 8))
trainer.fit(model, load("train"), load("val"), ckpt_path=callback.resume(trainer), weights_only=True)
trainer.test(model, load("test"), verbose=False)
session.finish(lambda folder: torch.save(model.state_dict(), folder / "model.pt"), trainer.callback_metrics)
