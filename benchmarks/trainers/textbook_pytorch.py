"""The DDP script of every tutorial: the reference for speed.

torchrun --nproc-per-node 2 textbook_pytorch.py MODEL PIXELS BATCH STEPS SOURCE
"""

import itertools
import os
import sys
import time
from collections.abc import Iterable

import torch
import torch.distributed as dist
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms

name, pixels, batch, steps, source = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
UNTIMED_STEPS = 2
CLASSES = 1000


def data() -> torch.utils.data.Dataset:
    size = batch * (steps + UNTIMED_STEPS) * dist.get_world_size()
    if source == "fake":
        return datasets.FakeData(size, (3, pixels, pixels), CLASSES, transforms.ToTensor())
    if source == "resident":
        return torch.utils.data.TensorDataset(torch.randn(size, 3, pixels, pixels), torch.arange(size) % CLASSES)
    fitted = [transforms.Resize(pixels), transforms.CenterCrop(pixels), transforms.ToTensor()]
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
    return datasets.ImageFolder(source, transforms.Compose([*fitted, normalize]))


def batches(device: torch.device) -> Iterable[tuple[torch.Tensor, torch.Tensor]]:
    if source == "device":
        images = torch.randn(batch, 3, pixels, pixels, device=device)
        return itertools.repeat((images, torch.arange(batch, device=device) % CLASSES))
    samples = data()
    sampler = DistributedSampler(samples)
    return DataLoader(samples, batch, sampler=sampler, num_workers=0 if source == "resident" else 4)


def main() -> None:
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    model = torchvision.models.get_model(name, num_classes=CLASSES).to(device)
    model = DistributedDataParallel(model, device_ids=[device.index] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4)
    loss_of = nn.CrossEntropyLoss()
    started = 0.0
    for done, (images, labels) in enumerate(batches(device)):
        if done == UNTIMED_STEPS:
            started = time.perf_counter()
        outputs = model(images.to(device))
        loss = loss_of(outputs, labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss.item()
        if done + 1 == UNTIMED_STEPS + steps:
            break
    if dist.get_rank() == 0:
        rate = batch * steps * dist.get_world_size() / (time.perf_counter() - started)
        print(f"images_per_second={rate}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
