"""The order in which shards are read through a cache that is smaller than the data."""

import tracemalloc
from array import array
from dataclasses import replace
from itertools import accumulate, chain
from pathlib import Path

import pytest

from kubetrain_trainer.data.sample_order import keys_of
from kubetrain_trainer.data.sampling import plan_samples
from kubetrain_trainer.data.shard_cache import TRAINING, ShardCache, StoredShard
from kubetrain_trainer.data.shard_groups import CachedShards, ShardGroups
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.settings.config import TrainConfig

SAMPLES = [30, 10, 50, 20, 40, 30, 20, 60, 10, 30]
SIZE = sum(SAMPLES)
CONFIG = TrainConfig(data="tar_shards", data_access="cache", cache_gb=400e-9, global_batch_size=32, batch_size=8)


def groups(samples: list[int] = SAMPLES, config: TrainConfig = CONFIG) -> ShardGroups:
    """Return groups of up to 100 bytes, of shards with a byte for each sample."""
    shards = tuple(StoredShard(f"train/{number}.tar", size, "etag", "sha256") for number, size in enumerate(samples))
    starts = array("q", [0, *accumulate(samples)])
    return ShardGroups.of(
        CachedShards(cache=ShardCache(Path("/absent"), TRAINING), shards=shards, starts=starts), config
    )


def test_an_own_sampler_is_refused() -> None:
    with pytest.raises(InvalidSetting, match=r"data\.delivery=cache does not support .* use data\.delivery=volume"):
        plan_samples(SIZE, CONFIG, 1, sampler=lambda epoch: range(SIZE), groups=groups())


def test_each_sample_once() -> None:
    for seed, epoch in ((0, 0), (0, 1), (1, 0)):
        assert sorted(groups().order(seed, epoch)[:]) == list(range(SIZE))


def test_it_depends_on_seed_epoch_and_size_of_the_cache_alone() -> None:
    order = groups().order(3, 4)[:]
    assert groups().order(3, 4)[:] == order
    larger = groups(config=replace(CONFIG, cache_gb=4000e-9))
    others = [groups().order(3, 5), groups().order(4, 4), larger.order(3, 4)]
    assert all(other[:] != order for other in others)
    assert groups([2, 1, 2], replace(CONFIG, cache_gb=12e-9)).order(0, 0)[:] == [4, 3, 0, 2, 1], (
        "resumed trainings need the order of their start"
    )


def test_each_epoch_shuffles_the_samples_of_a_single_group_anew() -> None:
    one, other = (groups([50]).order(3, epoch)[:] for epoch in (4, 5))
    assert one != other
    assert sorted(one) == sorted(other) == list(range(50))


def test_a_part_is_the_same_alone() -> None:
    whole = groups().order(7, 2)[:]
    for part in (slice(0, 5), slice(290, None), slice(3, 299, 7), slice(5, 5)):
        assert groups().order(7, 2)[part] == whole[part]


def test_shards_are_read_a_group_at_a_time() -> None:
    read = list(map(groups().cached.shard_of, groups().order(0, 0)[:]))
    groups_read = list[set[int]]()
    for place, number in enumerate(read):
        if not set(read[:place]) & set(read[place:]):
            groups_read.append(set())
        groups_read[-1].add(number)
    assert len(groups_read) > 3
    assert all(sum(SAMPLES[number] for number in group) <= 100 for group in groups_read)
    assert max(map(len, groups_read)) > 1, "the samples of several shards are mixed"


@pytest.mark.parametrize("processes", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("recipe", ["none", "strong"])
def test_a_step_has_the_same_samples_for_every_number_of_processes(processes: int, recipe: str) -> None:
    config = replace(CONFIG, recipe=recipe)

    def steps(count: int, start: int = 0) -> list[list[int]]:
        plan = plan_samples(SIZE, config, count, None, groups())
        shares = zip(*(plan.batches(1, rank, start) for rank in range(count)), strict=True)
        return [sorted(index for batch in step for index in batch.indices) for step in shares]

    assert steps(processes) == steps(1)
    assert sorted(chain.from_iterable(steps(processes))) == list(range(SIZE))
    assert steps(processes, start=64) == steps(1)[2:], "a resumed epoch continues with the same steps"


def test_each_process_reads_about_its_share_of_the_shards() -> None:
    many = groups([10] * 400, config := replace(CONFIG, cache_gb=4000e-9, global_batch_size=200))
    plan = plan_samples(4000, config, 8, None, many)
    read = [
        {many.cached.shard_of(index) for batch in plan.batches(0, rank) for index in batch.indices} for rank in range(8)
    ]
    assert set().union(*read) == set(range(400))
    assert max(map(len, read)) < 0.25 * 400


FIRST = range(0, 1000, 50)


def recording(announced: list[str], shards: int) -> ShardGroups:
    class Cache(ShardCache):
        def announce(self, shards: object) -> None:
            announced.extend(shard.key for shard in shards)  # type: ignore[attr-defined]

    some = groups([10] * shards)
    return ShardGroups(replace(some.cached, cache=Cache(Path("/absent"), TRAINING)), some.group_bytes)


def test_the_next_epoch_announces_each_shard_again() -> None:
    """Also one that is still in use: the cache keeps longest what was announced last."""
    announced: list[str] = []
    recorded = recording(announced, 12)
    orders = [recorded.order(0, epoch)[:] for epoch in range(5)]
    keys = [
        [(epoch, index) for index in order[first : first + 10]]
        for epoch, order in enumerate(orders)
        for first in range(0, 120, 10)
    ]
    assert len(list(recorded.read_ahead(keys, processes=1))) == 60
    assert sorted(announced) == sorted([f"train/{number}.tar" for number in range(12)] * 5)


def test_reading_ahead_forgets_epochs_that_are_over() -> None:
    def most_bytes(epochs: int) -> int:
        recorded = recording([], 100)
        batches = ([(epoch, index) for index in range(first, first + 50)] for epoch in range(epochs) for first in FIRST)
        tracemalloc.start()
        for _ in recorded.read_ahead(batches, processes=1):
            pass
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return peak

    assert most_bytes(200) < most_bytes(10) + 1e6, "20,000 keys would take 2 MB"


def test_shards_are_announced_a_group_before_they_are_read() -> None:
    announced: list[str] = []
    recorded = recording(announced, 100)
    order = recorded.order(0, 0)
    ahead = recorded.read_ahead([keys_of(order[first : first + 10]) for first in range(0, 1000, 10)], processes=1)
    for number, batch in enumerate(ahead):
        following = order[10 * number : 10 * number + 100]
        assert {f"train/{index // 10}.tar" for index in following} <= set(announced)
        assert len(batch) == 10
        assert len(announced) <= number + 22, "two groups at most"
    assert sorted(announced) == sorted(f"train/{number}.tar" for number in range(100)), "each once"
