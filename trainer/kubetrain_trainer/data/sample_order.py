"""The random order of an epoch's samples, of which each part is computed when it is needed, and their keys.

Hundreds of millions of samples therefore need no memory for it, and no time at the start of an epoch.
"""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import isqrt

ROUNDS = 4
BITS = 2**64 - 1
Key = tuple[int, int]
"""The epoch and the index by which loaders read a sample. Its random augmentation depends on both."""


def derived_seed(*parts: int) -> int:
    """Return a seed for one step or one sample. Because each has its own seed, a resumed run draws the same random
    numbers as an uninterrupted one, without saving the state of generators."""
    digest = hashlib.blake2b("/".join(map(str, parts)).encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big")


@dataclass(frozen=True)
class EpochOrder:
    """A permutation of the numbers below `size` that depends only on the seed and the epoch.

    The numbers are places in a table of about as many rows as columns. Each round moves a place within its column, by a
    hash of the column, and then within its row: a Feistel network. The few places of the table beyond `size` are moved
    on until they reach one below it.
    """

    size: int
    seed: int
    epoch: int

    def __getitem__(self, part: slice) -> list[int]:
        return [self.at(place) for place in range(self.size)[part]]

    @cached_property
    def _rows(self) -> int:
        return isqrt(max(self.size - 1, 0)) + 1

    @cached_property
    def _columns(self) -> int:
        return -(-self.size // self._rows)

    @cached_property
    def _keys(self) -> list[tuple[int, int]]:
        seeds = [derived_seed(self.seed, self.epoch, number) for number in range(2 * ROUNDS)]
        return list(zip(seeds[::2], seeds[1::2], strict=True))

    def at(self, place: int) -> int:
        rows, columns = self._rows, self._columns
        row, column = divmod(place, columns)
        for one, other in self._keys:
            mixed = (column + one) * 0x9E3779B97F4A7C15 & BITS  # a function for this would take twice as long
            row = (row + (mixed ^ mixed >> 32)) % rows
            mixed = (row + other) * 0x9E3779B97F4A7C15 & BITS
            column = (column + (mixed ^ mixed >> 32)) % columns
        moved = row * columns + column
        return moved if moved < self.size else self.at(moved)


def keys_of(indices: Iterable[int]) -> list[Key]:
    """Return the keys of samples that no epoch changes."""
    return [(0, index) for index in indices]


def batches_of(indices: Sequence[int], size: int) -> Iterator[list[Key]]:
    """Yield such keys batch by batch, because a split may have millions."""
    return (keys_of(indices[first : first + size]) for first in range(0, len(indices), size))
