"""Measure the CPU seconds from the start of an epoch to its first batch, and those of each later batch.

python benchmarks/trainers/epoch_start.py [--samples 1281167 --launches 3]

The samples are as small as can be. PyTorch's usual loader, with DistributedSampler, is the peer.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from launches import output_of

EPOCHS, STEPS, BATCH = 3, 500, 32


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--samples", type=int, default=1_281_167)
    parser.add_argument("--launches", type=int, default=3)
    parser.add_argument("--contestant", choices=CONTESTANTS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.contestant:
        print(json.dumps(measured(CONTESTANTS[arguments.contestant](arguments.samples))))
        return
    seconds: dict[str, list[list[float]]] = {name: [] for name in CONTESTANTS}
    for _ in range(arguments.launches):
        for name, found in seconds.items():
            found.extend(launch(name, arguments.samples))
    print("| | CPU s to the first batch | CPU µs for each later batch |\n| - | -: | -: |")
    for name, found in seconds.items():
        first, later = (statistics.median(each) for each in zip(*found, strict=True))
        print(f"| {name} | {first:.3f} | {later * 1e6:,.0f} |")


def launch(name: str, samples: int) -> list[list[float]]:
    command = [sys.executable, __file__, "--contestant", name, "--samples", str(samples)]
    found: list[list[float]] = json.loads(output_of(command))
    return found


def measured(start: Callable[[int], Iterator[Any]]) -> list[tuple[float, float]]:
    seconds = []
    for epoch in range(EPOCHS):
        began = time.process_time()
        batches = start(epoch)
        next(batches)
        first = time.process_time()
        for _ in range(STEPS):
            next(batches)
        seconds.append((first - began, (time.process_time() - first) / STEPS))
    return seconds


class Samples:
    def __init__(self, size: int, load: Callable[[Any], Any]) -> None:
        self.size = size
        self.load = load

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> Any:
        return self.load(index)


def peer(size: int) -> Callable[[int], Iterator[Any]]:
    import torch
    from torch.utils.data import DataLoader, DistributedSampler

    samples: Any = Samples(size, lambda index: (torch.zeros(1), index))
    sampler: Any = DistributedSampler(samples, num_replicas=1, rank=0)

    def start(epoch: int) -> Iterator[Any]:
        sampler.set_epoch(epoch)
        return iter(DataLoader(samples, BATCH, sampler=sampler))

    return start


def pytorch(size: int) -> Callable[[int], Iterator[Any]]:
    import torch

    from kubetrain_trainer.processes.process_role import ProcessRole
    from kubetrain_trainer.pytorch_ddp.loading import Loader
    from kubetrain_trainer.settings.config import TrainConfig

    samples = Samples(size, lambda index: (torch.zeros(1), index))
    config = TrainConfig(batch_size=BATCH, loader_workers=0)
    loader = Loader(samples, config, ProcessRole(), torch.device("cpu"))
    plan = loader.plan(1, None)
    return lambda epoch: loader.load(batch.keys for batch in plan.batches(epoch, 0))


def tensorflow(size: int) -> Callable[[int], Iterator[Any]]:
    import tensorflow as tf

    from kubetrain_trainer.data.sampling import plan_samples
    from kubetrain_trainer.settings.config import TrainConfig
    from kubetrain_trainer.tensorflow_multiworker.loading import load

    samples = Samples(size, lambda index: (tf.zeros([1]), index))
    plan = plan_samples(size, TrainConfig(batch_size=BATCH), 1, None)
    return lambda epoch: load(samples, (batch.keys for batch in plan.batches(epoch, 0)))


CONTESTANTS = {"PyTorch's usual loader": peer, "ours, PyTorch": pytorch, "ours, TensorFlow": tensorflow}

if __name__ == "__main__":
    main()
