"""Batches for a sharded model, which computes only in all processes together."""

from collections.abc import Iterator
from typing import Any

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.loading import Loaded


def in_lockstep(batches: Iterator[Loaded], group: Group, stop: Any) -> Iterator[Loaded]:
    """Yield the same number of batches in every process, until one is asked to stop. A process that has no more gets
    its last one again, with 0 samples.

    Raises:
        KubetrainError: if a process has none.
    """
    batch = last = next(batches, None)
    while True:
        marks = [batch is not None, stop.is_requested, last is None]
        remaining, stopping, lacking = group.sum([float(mark) for mark in marks])
        if not remaining or stopping:
            return
        if lacking:
            raise KubetrainError(
                f"{lacking:.0f} of {group.role.world_size} processes have no sample of the validation split: with "
                "sharding, each needs one"
            )
        filler = last._replace(samples=0)  # type: ignore[union-attr]
        yield batch or filler
        batch = next(batches, None)
        last = batch or last
