"""A script with DistributedDataParallel as most teams have one. The lines with `session` are all that kubetrain adds.

From this folder:

    kubetrain run digits.yaml --code .
"""

import json
import os
from argparse import ArgumentParser, Namespace
from pathlib import Path

import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, Subset
from torchvision.datasets import ImageFolder
from torchvision.transforms.v2 import Compose, Grayscale, ToDtype, ToImage

from kubetrain_trainer import session

READ = Compose([ToImage(), Grayscale(), ToDtype(torch.float32, scale=True)])


def parse_arguments() -> Namespace:
    parser = ArgumentParser()
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True, help="folder of the model")
    parser.add_argument("--results", type=Path, required=True, help="JSON file of the results")
    parser.add_argument("--resume", type=Path, help="folder of a checkpoint")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-3)
    return parser.parse_args()


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def train_epoch(model: nn.Module, optimizer: torch.optim.Optimizer, batches: DataLoader, device: torch.device) -> float:
    model.train()
    losses = []
    for images, labels in batches:
        loss = nn.functional.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return average(torch.stack(losses).mean(), torch.ones((), device=device))


def evaluate(model: nn.Module, batches: DataLoader, device: torch.device) -> float:
    model.eval()
    right, all_samples = torch.zeros((), device=device), torch.zeros((), device=device)
    with torch.no_grad():
        for images, labels in batches:
            right += (model(images.to(device)).argmax(dim=1) == labels.to(device)).sum()
            all_samples += len(labels)
    return average(right, all_samples)


def average(total: Tensor, count: Tensor) -> float:
    """Return the mean over all processes."""
    sums = torch.stack([total, count])
    distributed.all_reduce(sums)
    return float(sums[0] / sums[1])


def save(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, epoch: int) -> None:
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
    torch.save(state, folder / "checkpoint.pt")


def load(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load a checkpoint, and return the epoch to begin with."""
    state = torch.load(Path(folder, "checkpoint.pt"), map_location="cpu", weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    return int(state["epoch"]) + 1


def main(args: Namespace) -> None:
    has_gpus = torch.cuda.is_available()
    distributed.init_process_group("nccl" if has_gpus else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if has_gpus else torch.device("cpu")

    images = ImageFolder(args.data / "train", READ)
    sampler = DistributedSampler(images)
    batches = DataLoader(images, args.batch_size, sampler=sampler)
    test_images = ImageFolder(args.data / "test", READ)
    # A DistributedSampler would count some images twice, to give each process as many.
    own = range(distributed.get_rank(), len(test_images), distributed.get_world_size())
    test_batches = DataLoader(Subset(test_images, own), args.batch_size)

    torch.manual_seed(0)
    model = DistributedDataParallel(build_model().to(device))
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)

    args.resume = session.resume() or args.resume
    first = load(args.resume, model, optimizer) if args.resume else 0
    for epoch in range(first, args.epochs):
        sampler.set_epoch(epoch)
        loss = train_epoch(model, optimizer, batches, device)
        session.log(epoch + 1, loss=loss)
        session.save(epoch + 1, lambda folder, epoch=epoch: save(folder, model, optimizer, epoch))

    accuracy = evaluate(model.module, test_batches, device)
    if distributed.get_rank() == 0:
        args.output.mkdir(parents=True, exist_ok=True)
        torch.save(model.module.state_dict(), args.output / "model.pt")
        args.results.write_text(json.dumps({"accuracy": accuracy}))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(parse_arguments())
