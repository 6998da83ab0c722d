"""Which samples a process takes at which step: each sample once an epoch, in an order that depends only on
(seed, epoch), so that a run resumes in the middle of an epoch, with more or fewer processes too."""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass, replace

from kubetrain_trainer.checkpoint_layout import Progress
from kubetrain_trainer.errors import KubetrainError


@dataclass(frozen=True, kw_only=True)
class Batch:
    """One step's share of one process."""

    indices: list[int]
    global_size: int
    """Samples that all processes take together at this step."""

    def weight(self, world_size: int) -> float:
        """The factor of each sample's loss that makes the mean over processes the mean over samples."""
        return world_size / self.global_size

    def parts(self, most: int, world_size: int) -> int:
        """How many parts each process can compute its share in: as many as all others, each of two samples or more,
        for batch normalization."""
        return max(1, min(most, self.global_size // world_size // 2))


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

    def resumed(self, progress: Progress) -> Progress:
        """Where these processes go on: in the next epoch where this one is as good as over."""
        if self._is_over(progress.samples_in_epoch):
            return replace(progress, epoch=progress.epoch + 1, samples_in_epoch=0)
        return progress

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
        while not self._is_over(start):
            end = min(start + global_batch, self.size)
            if self.size - end < 2 * self.world_size:
                end = self.size
            yield start, end
            start = end

    def _is_over(self, start: int) -> bool:
        """Whether so little of an epoch is left, as can be where more processes resume, that they would get less than
        two samples each."""
        return start > 0 and self.size - start < 2 * self.world_size


def epoch_order(size: int, seed: int, epoch: int) -> list[int]:
    order = list(range(size))
    random.Random(f"{seed}/{epoch}").shuffle(order)
    return order


def derived_seed(*parts: int) -> int:
    """The seed of one step, or of one sample. Seeding each anew lets a resumed run draw what an uninterrupted one
    would, without saving any generator's state."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


def evaluation_share(size: int, rank: int, world_size: int) -> range:
    """The samples that one process evaluates: each sample belongs to exactly one."""
    return range(rank, size, world_size)
