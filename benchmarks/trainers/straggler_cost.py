"""Measure what noting its own time costs a process in each step: the CPU time of steps that note it, and of others.

.venv/bin/python benchmarks/trainers/straggler_cost.py [--rounds 41]

One process trains a model that is as small as can be, so that the difference shows on a busy machine too.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable

from launches import python_program, run_together

STEPS, LOG_EVERY = 500, 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=41, help="pairs of 500 steps; the median counts")
    parser.add_argument("--measure", action="store_true", help="measure in this process, which torchrun has started")
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.rounds)
        return
    printed = run_together(python_program("pytorch", [__file__, *sys.argv[1:], "--measure"], processes=1))
    print(printed[0].rpartition("measured: ")[2].splitlines()[0])


def measure(rounds: int) -> None:
    # Imported here, because only the processes that torchrun starts need them.
    import torch
    from torch import distributed as dist
    from torch.nn import Linear
    from torch.nn.parallel import DistributedDataParallel

    from kubetrain_trainer.pytorch_ddp.data_parallel import TimedAllReduce
    from kubetrain_trainer.reporting.own_time import HostClock, OwnTime

    dist.init_process_group("gloo")
    inputs, own_time = torch.randn(4, 8), OwnTime(HostClock())
    plain_model, timed_model = DistributedDataParallel(Linear(8, 8)), TimedAllReduce(Linear(8, 8), own_time)

    def plain() -> None:
        for _ in range(STEPS):
            plain_model(inputs).sum().backward()

    def timed() -> None:
        for step in own_time.loading(range(STEPS)):
            timed_model(inputs).sum().backward()
            own_time.end_step()
            if step % LOG_EVERY == 0:
                own_time.read()

    seconds(plain), seconds(timed)
    costs = sorted(-seconds(plain) + seconds(timed) for _ in range(rounds))
    middle, lowest, highest = (1e6 * each for each in (statistics.median(costs), costs[0], costs[-1]))
    print(f"measured: {middle:.0f} µs of CPU time per step ({lowest:.0f} to {highest:.0f})", flush=True)
    dist.destroy_process_group()


def seconds(take_steps: Callable[[], None]) -> float:
    """Return the CPU time of this process for a step."""
    began = time.process_time()
    take_steps()
    return (time.process_time() - began) / STEPS


if __name__ == "__main__":
    main()
