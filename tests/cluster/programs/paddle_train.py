"""Add up the numbers of all processes that Paddle's launcher starts on CPUs, and check the sum in every process."""

import socket
import sys

import paddle
from faults import wait_or_fail
from paddle import distributed


def main() -> None:
    paddle.set_device("cpu")
    distributed.init_parallel_env()
    rank, size = distributed.get_rank(), distributed.get_world_size()
    numbers = paddle.to_tensor([rank + 1.0])
    distributed.all_reduce(numbers)
    total = int(numbers.item())
    print(f"rank {rank} of {size} on {socket.gethostname()}: sum {total}", flush=True)
    wait_or_fail(rank)
    distributed.barrier()
    if total != size * (size + 1) // 2:
        sys.exit(f"rank {rank}: the sum is {total}")


main()
