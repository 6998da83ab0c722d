"""Add up the numbers of all ranks of an MPI job, and check the sum on every rank."""

import socket
import sys

from faults import wait_or_fail
from mpi4py import MPI


def main() -> None:
    world = MPI.COMM_WORLD
    rank, size = world.Get_rank(), world.Get_size()
    total = world.allreduce(rank + 1)
    print(f"rank {rank} of {size} on {socket.gethostname()}: sum {total}", flush=True)
    wait_or_fail(rank)
    world.Barrier()
    if total != size * (size + 1) // 2:
        sys.exit(f"rank {rank}: the sum is {total}")


main()
