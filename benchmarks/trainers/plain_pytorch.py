"""A plain DDP training of an image folder from start to end: the reference for trained models.

torchrun --nproc-per-node 2 plain_pytorch.py DATA MODEL PIXELS EPOCHS SEED
"""

import math
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

from kubetrain_trainer.pytorch_ddp.model import build_model

data_dir, name, pixels, epochs, seed = (
    Path(sys.argv[1]),
    sys.argv[2],
    int(sys.argv[3]),
    int(sys.argv[4]),
    int(sys.argv[5]),
)
BATCH, RATE, WARMUP_EPOCHS = 32, 0.1, 1


def images(split: str) -> datasets.ImageFolder:
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return datasets.ImageFolder(
        data_dir / split, transforms.Compose([transforms.Resize(pixels), transforms.ToTensor(), normalize])
    )


def rate_at(epochs_done: float) -> float:
    if epochs_done < WARMUP_EPOCHS:
        return epochs_done / WARMUP_EPOCHS
    return (1 + math.cos(math.pi * (epochs_done - WARMUP_EPOCHS) / (epochs - WARMUP_EPOCHS))) / 2


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(seed)
    sampler = DistributedSampler(images("train"), seed=seed)
    loader = DataLoader(images("train"), BATCH, sampler=sampler)
    model = DistributedDataParallel(build_model(name, 10, {}))
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=0.9, weight_decay=5e-4)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: rate_at((step + 1) / len(loader)))
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for inputs, labels in loader:
            optimizer.zero_grad()
            loss_of(model(inputs), labels).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
    model.eval()
    correct = torch.zeros(())
    with torch.no_grad():
        for inputs, labels in DataLoader(images("test"), BATCH):
            correct += (model(inputs).argmax(1) == labels).sum()
    if dist.get_rank() == 0:
        print(f"test_accuracy={correct / len(images('test'))}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
