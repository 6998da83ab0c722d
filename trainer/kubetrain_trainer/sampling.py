"""Which samples a process takes at which step: each sample once an epoch, in an order that depends on nothing but
(seed, epoch), so that a run resumes in the middle of an epoch, with more or fewer processes too."""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass

from kubetrain_trainer.errors import KubetrainError


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One step's share of one process."""

    indices: list[int]
    global_size: int
    """Samples that all processes take together at this step."""

    def weight(self, world_size: int) -> float:
        """What the mean loss of this share counts for, so that the mean over processes is the mean over samples."""
        return len(self.indices) * world_size / self.global_size


@dataclass(frozen=True, kw_only=True)
class SamplePlan:
    size: int
    batch_size: int
    world_size: int
    seed: int

    def __post_init__(self) -> None:
        if self.size < self.world_size:
            raise KubetrainError(
                f"the training data has {self.size} samples, fewer than the {self.world_size} processes: "
                "use fewer workers or more data"
            )

    @property
    def steps_per_epoch(self) -> int:
        return sum(1 for _ in self._steps(0))

    def epochs_done(self, epoch: int, samples_in_epoch: int) -> float:
        return epoch + samples_in_epoch / self.size

    def batches(self, epoch: int, rank: int, start: int = 0) -> Iterator[Batch]:
        """The shares of one process in an epoch whose first `start` samples have been taken already."""
        order = epoch_order(self.size, self.seed, epoch)
        for first, last in self._steps(start):
            yield Batch(indices=order[first + rank : last : self.world_size], global_size=last - first)

    def _steps(self, start: int) -> Iterator[tuple[int, int]]:
        """Where each step begins and ends in the epoch's order.

        A rest too small for two samples a process joins the step before it: no process is ever left without a sample,
        and batch normalization has more than one to average over.
        """
        global_batch = self.batch_size * self.world_size
        while start < self.size:
            end = min(start + global_batch, self.size)
            if self.size - end < 2 * self.world_size:
                end = self.size
            yield start, end
            start = end


def epoch_order(size: int, seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def derived_seed(*parts: int) -> int:
    """Where the random numbers of one step, or of one sample, begin: derived anew each time, so that a resumed run
    draws what an uninterrupted one would, and no generator's state has to be saved."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def evaluation_share(size: int, rank: int, world_size: int) -> range:
    """The samples that one process evaluates: each sample belongs to exactly one."""
    return range(rank, size, world_size)
