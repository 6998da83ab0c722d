"""Train ResNet-18 on fake images with DistributedDataParallel: torchrun --nproc_per_node=2 ddp_resnet.py"""

import argparse
import os

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.optim as optim
import torchvision
import torchvision.transforms as transforms
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler


def setup():
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend=backend, init_method="env://")
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))


def cleanup():
    dist.destroy_process_group()


def train(args):
    setup()
    rank = dist.get_rank()
    world_size = dist.get_world_size()
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device(f"cuda:{local_rank}" if torch.cuda.is_available() else "cpu")
    print(f"Running DDP on rank {rank} of {world_size}")

    dataset = torchvision.datasets.FakeData(
        size=args.num_samples, image_size=(3, 32, 32), num_classes=10, transform=transforms.ToTensor()
    )
    sampler = DistributedSampler(dataset, num_replicas=world_size, rank=rank, shuffle=True)
    loader = DataLoader(dataset, batch_size=args.batch_size, sampler=sampler, num_workers=args.num_workers)

    model = torchvision.models.resnet18(num_classes=10).to(device)
    ddp_model = DDP(model, device_ids=[local_rank] if torch.cuda.is_available() else None)
    criterion = nn.CrossEntropyLoss()
    optimizer = optim.SGD(ddp_model.parameters(), lr=args.lr * world_size, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        ddp_model.train()
        total_loss = 0.0
        for images, labels in loader:
            images, labels = images.to(device), labels.to(device)
            optimizer.zero_grad()
            loss = criterion(ddp_model(images), labels)
            loss.backward()
            optimizer.step()
            total_loss += loss.item()
        if rank == 0:
            print(f"Epoch {epoch + 1}/{args.epochs}, Loss: {total_loss / len(loader):.4f}")

    if rank == 0:
        os.makedirs(args.output_dir, exist_ok=True)
        torch.save(model.state_dict(), os.path.join(args.output_dir, "resnet18.pth"))
    cleanup()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--num-samples", type=int, default=64)
    parser.add_argument("--num-workers", type=int, default=1)
    parser.add_argument("--output-dir", default="/output")
    train(parser.parse_args())
