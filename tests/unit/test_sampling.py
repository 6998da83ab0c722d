"""Each epoch uses each sample once, with any number of processes and from any position."""

from itertools import chain, pairwise

import pytest

from kubetrain_trainer.checkpoint_layout import TrainingProgress
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.sampling import SamplePlan, derived_seed, epoch_order, evaluation_indices


def steps(plan: SamplePlan, epoch: int = 0, start: int = 0) -> list[list[list[int]]]:
    """Return the indices of each step and rank."""
    ranks = [plan.batches(epoch, rank, start) for rank in range(plan.world_size)]
    return [[share.indices for share in step] for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [7, 8, 63, 64, 65, 100, 129])
def test_each_sample_once_an_epoch(size: int, world_size: int) -> None:
    plan = SamplePlan(size=size, batch_size=8, world_size=world_size, seed=1)
    taken = [index for step in steps(plan) for indices in step for index in indices]
    assert sorted(taken) == list(range(size))
    assert len(steps(plan)) == plan.steps_per_epoch


@pytest.mark.parametrize("size", [14, 57, 64, 65, 66, 100])
def test_no_process_gets_fewer_than_two_samples(size: int) -> None:
    plan = SamplePlan(size=size, batch_size=8, world_size=4, seed=1)
    assert min(len(indices) for step in steps(plan) for indices in step) >= 2


def test_a_step_of_two_processes_is_the_step_of_one_with_twice_the_batch() -> None:
    two = steps(SamplePlan(size=100, batch_size=8, world_size=2, seed=5))
    one = steps(SamplePlan(size=100, batch_size=16, world_size=1, seed=5))
    assert [sorted(chain(*step)) for step in two] == [sorted(chain(*step)) for step in one]


def test_weights_make_the_mean_over_processes_the_mean_over_samples() -> None:
    plan = SamplePlan(size=101, batch_size=8, world_size=3, seed=0)
    *_, last = zip(*[plan.batches(0, rank) for rank in range(3)], strict=True)
    assert len({len(share.indices) for share in last}) == 2, "the end is uneven"
    losses = {index: float(index) for share in last for index in share.indices}
    weighted = [sum(losses[index] * share.weight(3) for index in share.indices) for share in last]
    assert sum(weighted) / 3 == pytest.approx(sum(losses.values()) / len(losses))


@pytest.mark.parametrize("most", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("size", [3, 4, 14, 57, 100])
def test_processes_use_the_same_number_of_parts_of_at_least_two_samples(size: int, most: int) -> None:
    plan = SamplePlan(size=size, batch_size=8, world_size=3, seed=1)
    for step in zip(*[plan.batches(0, rank) for rank in range(3)], strict=True):
        [parts] = {share.parts(most, 3) for share in step}
        fewest = min(len(share.indices) for share in step)
        assert parts == min(most, max(fewest // 2, 1))


@pytest.mark.parametrize("resumed_world_size", [1, 2, 5])
def test_resuming_within_an_epoch_uses_the_remaining_samples_once(resumed_world_size: int) -> None:
    before = SamplePlan(size=100, batch_size=8, world_size=2, seed=3)
    first_three = steps(before, epoch=4)[:3]
    seen = [index for step in first_three for indices in step for index in indices]
    after = SamplePlan(size=100, batch_size=8, world_size=resumed_world_size, seed=3)
    rest = [index for step in steps(after, epoch=4, start=len(seen)) for indices in step for index in indices]
    assert sorted(seen + rest) == list(range(100))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("left", range(18))
def test_a_remainder_too_small_for_all_processes_is_left_out(left: int, world_size: int) -> None:
    plan = SamplePlan(size=100, batch_size=4, world_size=world_size, seed=0)
    resumed = plan.resumed(TrainingProgress(step=9, epoch=2, samples_in_epoch=100 - left, samples_seen=300 - left))
    rest = steps(plan, epoch=2, start=100 - left)
    if left < 2 * world_size:
        assert (resumed.epoch, resumed.samples_in_epoch, resumed.samples_seen) == (3, 0, 300 - left)
        assert rest == []
    else:
        assert (resumed.epoch, resumed.samples_in_epoch) == (2, 100 - left)
        assert min(len(indices) for step in rest for indices in step) >= 2


def test_a_whole_epoch_is_never_left_out_however_small() -> None:
    plan = SamplePlan(size=4, batch_size=4, world_size=4, seed=0)
    assert plan.resumed(TrainingProgress(epoch=1)) == TrainingProgress(epoch=1)
    assert len(steps(plan)) == 1


def test_a_smaller_dataset_ends_the_epoch() -> None:
    plan = SamplePlan(size=10, batch_size=4, world_size=2, seed=0)
    assert plan.resumed(TrainingProgress(samples_in_epoch=12)).epoch == 1
    assert steps(plan, start=12) == []


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    orders = [epoch_order(50, seed, epoch) for seed in (0, 1) for epoch in (0, 1, 10)]
    assert all(first != second for first, second in pairwise(orders))
    assert epoch_order(50, 1, 10) == orders[-1]


def test_fewer_samples_than_processes_are_rejected() -> None:
    with pytest.raises(KubetrainError, match="3 samples, fewer than the 4 processes"):
        SamplePlan(size=3, batch_size=8, world_size=4, seed=0)


def test_evaluation_counts_each_sample_once() -> None:
    evaluated = [index for rank in range(4) for index in evaluation_indices(10, rank, 4)]
    assert sorted(evaluated) == list(range(10))


def test_derived_seeds_differ_and_repeat() -> None:
    seeds = {derived_seed(seed, step, rank) for seed in (0, 1) for step in range(50) for rank in range(4)}
    assert len(seeds) == 400
    assert derived_seed(0, 1, 2) == derived_seed(0, 1, 2) < 2**63
