"""The assignment of samples to steps and processes.

Each epoch uses each sample once, in an order that depends only on the seed, the epoch and the size of a cache, or the
samples that a task's own sampler returns for this epoch. A run can therefore resume in the middle of an epoch, even
with more or fewer processes. Only if more processes resume when few samples are left, the epoch ends without these: at
most 2 * processes - 1. With global_batch_size, steps and samples stay exactly the same.
"""

import functools
import math
import operator
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any

from kubetrain_trainer.data.sample_order import EpochOrder, Key
from kubetrain_trainer.data.shard_groups import ShardGroups
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.settings.config import TrainConfig

Sampler = Callable[[int], Sequence[int]]
"""A function that returns the indices of an epoch's samples, in the order of their use."""
RankSamples = Callable[[int, int], Sequence[int]]
"""A function that returns a process's samples of a step, by the first and last position of the step in the epoch."""


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The samples of one process in one step."""

    epoch: int
    indices: Sequence[int]
    """For data that is read in sequence, only their number counts."""
    global_size: int
    """Samples of all processes in this step."""
    is_usual: bool = True
    """False if the step has another size than the first one of each epoch."""

    @property
    def keys(self) -> list[Key]:
        return [(self.epoch, index) for index in self.indices]

    def weight(self, world_size: int) -> float:
        """Return the factor for each sample's loss that makes the mean over processes equal the mean over samples."""
        return world_size / self.global_size

    def micro_batches(self, config: TrainConfig, world_size: int) -> int:
        """Return the number of micro-batches in which to compute the batch (gradient accumulation). It is the same in
        all processes, and each micro-batch has at least two samples for batch normalization."""
        count = config.gradient_accumulation
        if config.global_batch_size:
            count *= math.ceil(self.global_size / (world_size * config.batch_size))
        return max(1, min(count, self.global_size // world_size // 2))


@dataclass(frozen=True, kw_only=True)
class SamplePlan:
    size: int
    global_batch: int
    world_size: int
    seed: int
    is_constant: bool = False
    """True if the steps are the same for any number of processes."""
    sampler: Sampler | None = None
    available: int = 0
    """The samples from which the sampler selects."""
    consecutive: int = 1
    """The number of samples in sequence that the same process gets, however many there are."""
    groups: ShardGroups | None = None
    """The groups of shards that the order reads one after the other; None: any sample may follow any other."""

    def __post_init__(self) -> None:
        least = self.consecutive * (self.world_size - 1) + 1
        if self.size < least:
            raise KubetrainError(
                f"the training data has {self.size} samples, but {self.world_size} processes need at least {least}: "
                "use fewer workers or more data"
            )

    @functools.cached_property
    def steps_per_epoch(self) -> int:
        return self.steps_from(0)

    def steps_from(self, start: int) -> int:
        """Return the number of steps that are left of an epoch after `start` samples."""
        return sum(1 for _ in self._steps(start))

    @functools.cached_property
    def _usual_size(self) -> int:
        return next(self._steps(0))[1]

    def resumed(self, progress: TrainingProgress) -> TrainingProgress:
        """Return where to resume: at the next epoch if too few samples of this one are left."""
        if self._is_over(progress.samples_in_epoch):
            return replace(progress, epoch=progress.epoch + 1, samples_in_epoch=0)
        return progress

    def epochs_done(self, epoch: int, samples_in_epoch: int) -> float:
        return epoch + samples_in_epoch / self.size

    def batches(self, epoch: int, rank: int, start: int = 0) -> Iterator[Batch]:
        """Yield one process's batches of an epoch, without the first `start` samples, which have already been used."""
        samples_of_step = self._grouped(self.groups, epoch, rank) if self.groups else self._shuffled(epoch, rank)
        for first, last in self._steps(start):
            size = last - first
            is_usual = size == self._usual_size
            yield Batch(epoch=epoch, indices=samples_of_step(first, last), global_size=size, is_usual=is_usual)

    def _shuffled(self, epoch: int, rank: int) -> RankSamples:
        order = self._sampled(self.sampler, epoch) if self.sampler else EpochOrder(self.size, self.seed, epoch)

        def samples_of_step(first: int, last: int) -> list[int]:
            starts = range(first + rank * self.consecutive, first + (rank + 1) * self.consecutive)
            columns = [order[start : last : self.world_size * self.consecutive] for start in starts]
            return [index for row in zip_longest(*columns) for index in row if index is not None]

        return samples_of_step

    def _grouped(self, groups: ShardGroups, epoch: int, rank: int) -> RankSamples:
        order = groups.order(self.seed, epoch)
        return lambda first, last: groups.rank_samples(order[first:last], rank, self.world_size, self.consecutive)

    def _sampled(self, sampler: Sampler, epoch: int) -> list[int]:
        order = sampled_order(sampler, epoch)
        if len(order) != self.size:
            raise KubetrainError(
                f"sampler({epoch}) returned {len(order)} samples, but sampler(0) {self.size}: return the same number "
                "for each epoch"
            )
        if wrong := [index for index in (min(order), max(order)) if not 0 <= index < self.available]:
            raise KubetrainError(
                f"sampler({epoch}) returned the index {wrong[0]}, but the data has the indices 0 to "
                f"{self.available - 1}"
            )
        return order

    def _steps(self, start: int) -> Iterator[tuple[int, int]]:
        """Yield the first and last position of each step in the epoch's order.

        If fewer samples than those of the smallest step remain, they are added to the previous step. So no process is
        ever without samples, and batch normalization always has more than one.
        """
        while not self._is_over(start):
            end = min(start + self.global_batch, self.size)
            if self.size - end < self._smallest_step:
                end = self.size
            yield start, end
            start = end

    def _is_over(self, start: int) -> bool:
        """Return True if too few samples are left for a step, which happens if more processes resume."""
        return start > 0 and self.size - start < self._smallest_step

    @property
    def _smallest_step(self) -> int:
        return self.global_batch // 2 if self.is_constant else 2 * self.world_size


def plan_samples(
    size: int, config: TrainConfig, world_size: int, sampler: Sampler | None, groups: ShardGroups | None = None
) -> SamplePlan:
    """Plan epochs of all samples, or of those that the task's own sampler returns.

    Raises:
        InvalidSetting: if the task has a sampler, but shards are read from a cache.
    """
    if sampler and groups:
        raise InvalidSetting(
            "data.delivery=cache does not support a task with its own sampler, whose order would fetch a shard again "
            "for almost every sample: use data.delivery=volume, or remove the sampler"
        )
    return SamplePlan(
        size=len(sampled_order(sampler, epoch=0)) if sampler else size,
        global_batch=config.global_batch(world_size),
        world_size=world_size,
        seed=config.seed,
        is_constant=config.global_batch_size > 0,
        sampler=sampler,
        available=size,
        consecutive=2 if config.augmentation.mixes else 1,
        groups=groups,
    )


def sampled_order(sampler: Sampler, epoch: int) -> list[int]:
    order: Any = sampler(epoch)
    try:
        return list(map(operator.index, order.tolist() if hasattr(order, "tolist") else order))  # tolist() is faster
    except TypeError as error:
        raise KubetrainError(f"sampler({epoch}) must return the indices of samples, which are whole numbers") from error


def check_sampler(sampler: Sampler, group: ProcessGroup) -> None:
    """Check that all processes get the same samples for an epoch, and again when they resume. All of them call this.

    Raises:
        KubetrainError: if the sampler returns others.
    """
    digests = [group.gather(_digest(sampled_order(sampler, epoch=0))) for _ in range(2)]
    if len({*digests[0], *digests[1]}) > 1:
        raise KubetrainError(
            "sampler(0) returned other samples when it was called again, or in another process: draw them from a "
            "generator of your own, with a seed that depends only on the epoch"
        )


def _digest(order: Sequence[int]) -> float:
    return float(zlib.crc32(array("q", order).tobytes()))


def evaluation_indices(size: int, rank: int, world_size: int) -> range:
    """Return the samples that one process evaluates. Each sample belongs to exactly one process."""
    return range(rank, size, world_size)
