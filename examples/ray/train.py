"""A script with Ray Train. The lines with `session` and `KUBETRAIN_` are all that kubetrain adds.

From this folder:

    kubetrain submit digits.yaml --code .
"""

import os
from pathlib import Path

import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train import torch as ray_torch
from torch import nn
from torch.utils.data import DataLoader
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import Compose, Grayscale, ToDtype, ToImage

from kubetrain_trainer import session

EPOCHS = 3


def train_worker() -> None:
    """Train in each worker. Ray Train has begun the process group, and divides the images among the workers."""
    read = Compose([ToImage(), Grayscale(), ToDtype(torch.float32, scale=True)])
    images = ImageFolder(Path(os.environ["KUBETRAIN_DATA"], "train"), read)
    batches = ray_torch.prepare_data_loader(DataLoader(images, batch_size=32, shuffle=True))
    model = ray_torch.prepare_model(nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    saved = session.resume()
    if saved:
        model.load_state_dict(torch.load(saved.path / "model.pt"))
    for epoch in range(saved.step if saved else 0, EPOCHS):
        for samples, labels in batches:
            loss = nn.functional.cross_entropy(model(samples), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        session.log(epoch + 1, loss=loss)
        session.save(epoch + 1, lambda folder: torch.save(model.state_dict(), folder / "model.pt"))
    session.finish(lambda folder: torch.save(model.state_dict(), folder / "model.pt"), {"loss": loss})


if __name__ == "__main__":
    workers = int(os.environ.get("RAY_WORKERS", "2"))
    trainer = ray_torch.TorchTrainer(
        train_worker,
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=torch.cuda.is_available()),
        run_config=RunConfig(
            storage_path=os.environ["KUBETRAIN_OUTPUT"] + "/ray",
            failure_config=FailureConfig(max_failures=3),
        ),
    )
    trainer.fit()
