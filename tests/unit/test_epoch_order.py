from collections import Counter
from itertools import pairwise

import numpy as np
import pytest

from kubetrain_trainer.data.sample_order import EpochOrder


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8, 9, 10, 16, 17, 1023, 1024, 1025, 99_991])
def test_each_number_once(size: int) -> None:
    for seed in range(3):
        assert sorted(EpochOrder(size, seed, 0)[:]) == list(range(size))


def test_it_depends_on_seed_and_epoch_alone() -> None:
    orders = [EpochOrder(50, seed, epoch)[:] for seed in (0, 1) for epoch in (0, 1, 10)]
    assert all(first != second for first, second in pairwise(orders))
    assert EpochOrder(50, 1, 10)[:] == orders[-1]
    assert EpochOrder(10, 0, 0)[:] == [4, 9, 8, 6, 5, 2, 0, 3, 1, 7], "resumed trainings need the order of their start"


def test_a_part_is_the_same_alone() -> None:
    order = EpochOrder(10_007, seed=7, epoch=2)
    whole = order[:]
    for part in (slice(0, 5), slice(9_990, None), slice(123, 9_999, 64), slice(5, 5), slice(None, 0)):
        assert order[part] == whole[part]


def test_a_part_of_billions_takes_no_memory_for_the_others() -> None:
    part = EpochOrder(10**10, seed=0, epoch=0)[10**9 : 10**9 + 1000]
    assert len({*part}) == 1000
    assert 0 <= min(part) < max(part) < 10**10
    assert np.mean(part) == pytest.approx(5e9, rel=0.1)


def test_each_number_is_equally_likely_at_each_place() -> None:
    size, orders = 20, 4000
    counts = np.zeros((size, size))
    for seed in range(orders):
        counts[np.arange(size), EpochOrder(size, seed, 0)[:]] += 1
    expected = orders / size
    degrees = (size - 1) ** 2
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert abs(chi_squared - degrees) < 6 * (2 * degrees) ** 0.5


def test_all_orders_of_four_occur_about_equally_often() -> None:
    counts = Counter(tuple(EpochOrder(4, seed, 0)[:]) for seed in range(4800))
    assert len(counts) == 24
    assert 140 < min(counts.values()) <= max(counts.values()) < 260


def test_neighbors_are_unrelated() -> None:
    order = np.array(EpochOrder(100_000, seed=3, epoch=1)[:])
    for distance in (1, 2, 316, 317):  # a row of the table that it computes with has 317 places
        assert abs(np.corrcoef(order[:-distance], order[distance:])[0, 1]) < 0.015
