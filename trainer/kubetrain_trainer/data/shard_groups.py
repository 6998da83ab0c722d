"""An order of samples for shards in a cache that is smaller than the data.

Each epoch reads the shards in another order, a group of them at a time, and shuffles the samples of a group. The order
depends only on the seed, the epoch and the size of the cache, and each part of it is computed when it is needed.
"""

from array import array
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from kubetrain_trainer.data.sample_order import EpochOrder, Key, derived_seed
from kubetrain_trainer.data.shard_cache import PARTS, ShardCache, StoredShard
from kubetrain_trainer.settings.config import TrainConfig

GROUPS_IN_CACHE = 3
"""The group that is read, the next one, and the one before, which the slowest reader may still need."""


@dataclass(frozen=True, kw_only=True)
class CachedShards:
    """The shards of a split, in the order of their samples."""

    cache: ShardCache
    shards: tuple[StoredShard, ...]
    starts: "array[int]"
    """The index of the first sample of each shard, and the number of all samples."""

    def open(self, number: int) -> int:
        return self.cache.open(self.shards[number])

    def shard_of(self, sample: int) -> int:
        return bisect_right(self.starts, sample) - 1

    def samples_of(self, number: int) -> int:
        return self.starts[number + 1] - self.starts[number]


@dataclass(frozen=True)
class ShardGroups:
    cached: CachedShards
    group_bytes: int

    @classmethod
    def of(cls, cached: CachedShards, config: TrainConfig) -> Self:
        return cls(cached, int(config.cache_bytes * PARTS[cached.cache.part] / GROUPS_IN_CACHE))

    def order(self, seed: int, epoch: int) -> "ShardOrder":
        shards = EpochOrder(len(self.cached.shards), seed, epoch)[:]
        return ShardOrder(self.cached, shards, list(self._grouped(shards)), seed, epoch)

    def rank_samples(self, samples: Sequence[int], rank: int, processes: int, consecutive: int = 1) -> Sequence[int]:
        """Return the samples of a step that one process reads: those of some shards, so that not all pods need all."""
        ordered = sorted(samples, key=self.cached.shard_of)
        runs = -(-len(ordered) // consecutive)
        first, last = (border * runs // processes * consecutive for border in (rank, rank + 1))
        return ordered[first:last]

    def read_ahead(self, batches: Iterable[Sequence[Key]], processes: int) -> Iterator[Sequence[Key]]:
        """Yield the batches of one of several processes, and announce the shards of those that follow: as many as it
        reads while a group is in use."""
        most = self._group_samples // processes
        window, samples, used = deque[tuple[Sequence[Key], list[tuple[int, int]]]](), 0, Counter[tuple[int, int]]()
        for batch in batches:
            # The next epoch announces a shard again, because the cache keeps longest what was announced last.
            shards = list(dict.fromkeys((epoch, self.cached.shard_of(index)) for epoch, index in batch))
            if new := [number for epoch, number in shards if not used[epoch, number]]:
                self.cached.cache.announce(self.cached.shards[number] for number in new)
            used.update(shards)
            window.append((batch, shards))
            samples += len(batch)
            while samples > most:
                first, shards = window.popleft()
                used.subtract(shards)
                for shard in shards:  # a training has many epochs
                    if not used[shard]:
                        del used[shard]
                samples -= len(first)
                yield first
        yield from (batch for batch, _ in window)

    def _grouped(self, shards: Sequence[int]) -> Iterator[list[int]]:
        group, size = list[int](), 0
        for number in shards:
            if group and size + self.cached.shards[number].size > self.group_bytes:
                yield group
                group, size = [], 0
            group.append(number)
            size += self.cached.shards[number].size
        yield group

    @property
    def _group_samples(self) -> int:
        size = sum(shard.size for shard in self.cached.shards)
        return self.cached.starts[-1] * min(self.group_bytes, size) // size


class ShardOrder:
    """The order of the samples of one epoch."""

    def __init__(
        self, cached: CachedShards, shards: Sequence[int], groups: Sequence[Sequence[int]], seed: int, epoch: int
    ) -> None:
        """
        Args:
            shards: All shards, in the order of this epoch.
            groups: The same in groups.
        """
        sizes = [sum(map(cached.samples_of, group)) for group in groups]
        self._cached, self._shards = cached, shards
        self._places = [0, *accumulate(map(cached.samples_of, shards))]
        """The place of the first sample of each shard, before samples are shuffled."""
        self._groups = [0, *accumulate(sizes)]
        self._orders = [EpochOrder(size, derived_seed(seed, number), epoch) for number, size in enumerate(sizes)]

    def __getitem__(self, part: slice) -> list[int]:
        return [self._sample_at(place) for place in range(self._places[-1])[part]]

    def _sample_at(self, place: int) -> int:
        group = bisect_right(self._groups, place) - 1
        start = self._groups[group]
        moved = start + self._orders[group].at(place - start)
        slot = bisect_right(self._places, moved) - 1
        return self._cached.starts[self._shards[slot]] + moved - self._places[slot]
