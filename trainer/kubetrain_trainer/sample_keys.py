"""The key of a sample, by which loaders read it in any epoch."""

from collections.abc import Iterable, Iterator, Sequence

Key = tuple[int, int]
"""The epoch and the index of a sample. Its random augmentation depends on both."""


def keys_of(indices: Iterable[int]) -> list[Key]:
    """Return the keys of samples that no epoch changes."""
    return [(0, index) for index in indices]


def batches_of(indices: Sequence[int], size: int) -> Iterator[list[Key]]:
    """Yield such keys batch by batch, because a split may have millions."""
    return (keys_of(indices[first : first + size]) for first in range(0, len(indices), size))
