"""Batches for a sharded model, which computes only in all processes together."""

from collections.abc import Iterator
from typing import Any

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.loading import Loaded


def in_lockstep(batches: Iterator[Loaded], group: Group, stop: Any) -> Iterator[Loaded]:
    """Yield as many batches in each process, until one of them stops. A process that has no more gets its last one
    again, with 0 samples.

    Raises:
        KubetrainError: if a process has none.
    """
    batch = last = next(batches, None)
    while True:
        remaining, stopping = group.sum([float(batch is not None), float(stop.is_requested)])
        if not remaining or stopping:
            return
        if last is None:
            raise KubetrainError(
                f"the validation split has no batch for rank {group.role.rank}: with sharding, it needs a sample for "
                "each process at least"
            )
        yield batch or last._replace(samples=0)
        batch = next(batches, None)
        last = batch or last
