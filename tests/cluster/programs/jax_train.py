"""Add up the numbers of all processes of a JAX job on CPUs, and check the sum in every process."""

import os
import socket
import sys

import jax
import numpy as np
from faults import wait_or_fail
from jax.sharding import NamedSharding, PartitionSpec


def sum_over_processes(value: float) -> int:
    mesh = jax.make_mesh((jax.device_count(),), ("device",))
    spread, whole = PartitionSpec("device"), PartitionSpec()
    values = jax.make_array_from_process_local_data(
        NamedSharding(mesh, spread), np.full(jax.local_device_count(), value, dtype=np.float32)
    )
    add = jax.shard_map(lambda part: jax.lax.psum(part, "device"), mesh=mesh, in_specs=spread, out_specs=whole)
    return int(jax.jit(add)(values).addressable_data(0)[0])


def main() -> None:
    rank, size = int(os.environ["PROCESS_ID"]), int(os.environ["NUM_PROCESSES"])
    coordinator = f"{os.environ['COORDINATOR_ADDRESS']}:{os.environ['COORDINATOR_PORT']}"
    jax.distributed.initialize(
        coordinator,
        num_processes=size,
        process_id=rank,
        cluster_detection_method="deactivate",  # of Kubernetes, which needs more packages
        heartbeat_timeout_seconds=10,  # a rank that dies ends the others soon
    )
    total = sum_over_processes(rank + 1)
    print(f"rank {rank} of {size} on {socket.gethostname()}: sum {total}", flush=True)
    wait_or_fail(rank)
    if not total == sum_over_processes(rank + 1) == size * (size + 1) // 2:
        sys.exit(f"rank {rank}: the sum is {total}")


main()
