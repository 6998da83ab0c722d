"""Measure what it costs to check at each checkpoint that all processes train the same model, beside their steps.

.venv/bin/python benchmarks/trainers/replica_check_cost.py [--steps 10]

Two processes of PyTorch with a thread each train a ResNet-18 with 16 images of 64 x 64 pixels, and exchange by gloo.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial

from launches import python_program, run_together

from kubetrain_trainer.settings.config import TrainConfig


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--measure", action="store_true", help="measure in this process, which torchrun has started")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.steps)
        return
    command = python_program("pytorch", [__file__, *sys.argv[1:], "--measure"], processes=2)
    print(*(line for line in run_together(command)[0].splitlines() if line.startswith("a check ")), sep="\n")


def measure(steps: int) -> None:
    # Imported here, because only the processes that torchrun starts need them.
    import torch
    from torch.nn.parallel import DistributedDataParallel
    from torchvision.models import resnet18

    from kubetrain_trainer.loop.same_everywhere import Replicas
    from kubetrain_trainer.processes.process_role import torchrun_role
    from kubetrain_trainer.pytorch_ddp.group import join_group
    from kubetrain_trainer.pytorch_ddp.sharding import norm_of

    config = TrainConfig()
    with join_group(config, torchrun_role()) as group:
        torch.manual_seed(0)
        model = resnet18()
        parallel, images = DistributedDataParallel(model), torch.rand(16, 3, 64, 64)
        optimizer = torch.optim.SGD(model.parameters(), 0.001, 0.9, fused=True)

        def take_step() -> None:
            optimizer.zero_grad()
            parallel(images).square().mean().backward()
            optimizer.step()

        step = seconds_of(take_step, steps)
        check = seconds_of(Replicas(group, partial(norm_of, model)).check, steps)
    share = check / (config.checkpoint_every * step)
    print(
        f"a check takes {1000 * check:.2f} ms, a step {1000 * step:.0f} ms: {share:.3%} of the steps, with a check "
        f"every {config.checkpoint_every} of them"
    )


def seconds_of(work: Callable[[], None], times: int) -> float:
    """Return the median time of this work, after it has been done once."""
    work()
    seconds = []
    for _ in range(times):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)


if __name__ == "__main__":
    main()
