"""Each epoch uses each sample once, with any number of processes and from any position."""

from itertools import chain

import pytest

from kubetrain_trainer.data.sample_order import derived_seed
from kubetrain_trainer.data.sampling import SamplePlan, check_sampler, evaluation_indices, plan_samples
from kubetrain_trainer.data.stream_plan import remaining_batches, stream_plan
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.settings.config import TrainConfig
from support.training import FakeGroup


def steps(plan: SamplePlan, epoch: int = 0, start: int = 0) -> list[list[list[int]]]:
    """Return the indices of each step and rank."""
    ranks = [plan.batches(epoch, rank, start) for rank in range(plan.world_size)]
    return [[share.indices for share in step] for step in zip(*ranks, strict=True)]


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("size", [7, 8, 63, 64, 65, 100, 129])
def test_each_sample_once_an_epoch(size: int, world_size: int) -> None:
    plan = SamplePlan(size=size, global_batch=8 * world_size, world_size=world_size, seed=1)
    taken = [index for step in steps(plan) for indices in step for index in indices]
    assert sorted(taken) == list(range(size))
    assert len(steps(plan)) == plan.steps_per_epoch


@pytest.mark.parametrize("size", [14, 57, 64, 65, 66, 100])
def test_no_process_gets_fewer_than_two_samples(size: int) -> None:
    plan = SamplePlan(size=size, global_batch=32, world_size=4, seed=1)
    assert min(len(indices) for step in steps(plan) for indices in step) >= 2


def test_a_step_of_two_processes_is_the_step_of_one_with_twice_the_batch() -> None:
    two = steps(SamplePlan(size=100, global_batch=16, world_size=2, seed=5))
    one = steps(SamplePlan(size=100, global_batch=16, world_size=1, seed=5))
    assert [sorted(chain(*step)) for step in two] == [sorted(chain(*step)) for step in one]


def test_weights_make_the_mean_over_processes_the_mean_over_samples() -> None:
    plan = SamplePlan(size=101, global_batch=24, world_size=3, seed=0)
    *_, last = zip(*[plan.batches(0, rank) for rank in range(3)], strict=True)
    assert len({len(share.indices) for share in last}) == 2, "the end is uneven"
    losses = {index: float(index) for share in last for index in share.indices}
    weighted = [sum(losses[index] * share.weight(3) for index in share.indices) for share in last]
    assert sum(weighted) / 3 == pytest.approx(sum(losses.values()) / len(losses))


@pytest.mark.parametrize("most", [1, 2, 3, 8, 100])
@pytest.mark.parametrize("size", [3, 4, 14, 57, 100])
def test_processes_use_the_same_number_of_parts_of_at_least_two_samples(size: int, most: int) -> None:
    plan = SamplePlan(size=size, global_batch=24, world_size=3, seed=1)
    for step in zip(*[plan.batches(0, rank) for rank in range(3)], strict=True):
        [parts] = {share.micro_batches(TrainConfig(gradient_accumulation=most), 3) for share in step}
        fewest = min(len(share.indices) for share in step)
        assert parts == min(most, max(fewest // 2, 1))


@pytest.mark.parametrize("size", [64, 95, 96, 97, 100, 111, 112, 127])
def test_with_a_global_batch_size_the_steps_are_the_same_for_any_number_of_processes(size: int) -> None:
    config = TrainConfig(batch_size=3, global_batch_size=32)
    plans = [plan_samples(size, config, world_size, sampler=None) for world_size in (1, 2, 3, 5, 8)]
    one, *others = [[sorted(chain(*step)) for step in steps(plan)] for plan in plans]
    assert others == [one] * 4
    assert sorted(chain(*one)) == list(range(size))
    for plan in plans:
        for batch in plan.batches(0, rank=0):
            parts = batch.micro_batches(config, plan.world_size)
            assert parts == max(1, min(-(-len(batch.indices) // 3), batch.global_size // plan.world_size // 2))


@pytest.mark.parametrize(("size", "sizes"), [(64, [32, 32]), (79, [32, 47]), (80, [32, 32, 16])])
def test_a_remainder_of_half_a_global_batch_is_a_step_of_its_own(size: int, sizes: list[int]) -> None:
    plan = plan_samples(size, TrainConfig(batch_size=3, global_batch_size=32), world_size=2, sampler=None)
    assert [batch.global_size for batch in plan.batches(0, rank=0)] == sizes


@pytest.mark.parametrize(
    ("size", "are_usual"), [(64, [True, True]), (70, [True, True, False]), (65, [True, False]), (20, [True])]
)
def test_a_step_is_usual_if_it_has_the_size_of_the_first(size: int, are_usual: list[bool]) -> None:
    """Others are not compiled, which must not be all steps of a small dataset."""
    plan = SamplePlan(size=size, global_batch=32, world_size=2, seed=0)
    assert [batch.is_usual for batch in plan.batches(epoch=1, rank=0)] == are_usual


def test_a_global_batch_has_four_samples_for_each_process() -> None:
    config = TrainConfig(global_batch_size=16)
    assert config.global_batch(4) == 16
    with pytest.raises(InvalidSetting, match="at least 20, four samples for each of 5 processes, not 16"):
        config.global_batch(5)


@pytest.mark.parametrize("resumed_world_size", [1, 2, 5])
def test_resuming_within_an_epoch_uses_the_remaining_samples_once(resumed_world_size: int) -> None:
    before = SamplePlan(size=100, global_batch=16, world_size=2, seed=3)
    first_three = steps(before, epoch=4)[:3]
    seen = [index for step in first_three for indices in step for index in indices]
    after = SamplePlan(size=100, global_batch=8 * resumed_world_size, world_size=resumed_world_size, seed=3)
    rest = [index for step in steps(after, epoch=4, start=len(seen)) for indices in step for index in indices]
    assert sorted(seen + rest) == list(range(100))


@pytest.mark.parametrize("world_size", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("left", range(18))
def test_a_remainder_too_small_for_all_processes_is_left_out(left: int, world_size: int) -> None:
    plan = SamplePlan(size=100, global_batch=4 * world_size, world_size=world_size, seed=0)
    resumed = plan.resumed(TrainingProgress(step=9, epoch=2, samples_in_epoch=100 - left, samples_seen=300 - left))
    rest = steps(plan, epoch=2, start=100 - left)
    if left < 2 * world_size:
        assert (resumed.epoch, resumed.samples_in_epoch, resumed.samples_seen) == (3, 0, 300 - left)
        assert rest == []
    else:
        assert (resumed.epoch, resumed.samples_in_epoch) == (2, 100 - left)
        assert min(len(indices) for step in rest for indices in step) >= 2


def test_a_whole_epoch_is_never_left_out_however_small() -> None:
    plan = SamplePlan(size=4, global_batch=16, world_size=4, seed=0)
    assert plan.resumed(TrainingProgress(epoch=1)) == TrainingProgress(epoch=1)
    assert len(steps(plan)) == 1


def test_a_smaller_dataset_ends_the_epoch() -> None:
    plan = SamplePlan(size=10, global_batch=8, world_size=2, seed=0)
    assert plan.resumed(TrainingProgress(samples_in_epoch=12)).epoch == 1
    assert steps(plan, start=12) == []


def test_fewer_samples_than_processes_are_rejected() -> None:
    with pytest.raises(KubetrainError, match="3 samples, but 4 processes need at least 4"):
        SamplePlan(size=3, global_batch=32, world_size=4, seed=0)


def test_evaluation_counts_each_sample_once() -> None:
    evaluated = [index for rank in range(4) for index in evaluation_indices(10, rank, 4)]
    assert sorted(evaluated) == list(range(10))


def test_derived_seeds_differ_and_repeat() -> None:
    seeds = {derived_seed(seed, step, rank) for seed in (0, 1) for step in range(50) for rank in range(4)}
    assert len(seeds) == 400
    assert derived_seed(0, 1, 2) == derived_seed(0, 1, 2) < 2**63


def balanced(epoch: int) -> list[int]:
    """Return the samples of a small class more often."""
    return [(7 * position + epoch) % 5 for position in range(30)]


def test_an_own_sampler_is_divided_among_the_processes_in_its_order() -> None:
    plan = plan_samples(100, TrainConfig(batch_size=4), world_size=2, sampler=balanced)
    taken = [list(chain(*zip(*step, strict=True))) for step in steps(plan, epoch=3)]
    assert list(chain(*taken)) == balanced(3)
    assert steps(plan, epoch=3, start=16) == steps(plan, epoch=3)[2:], "a run that resumes gets the rest of it"
    assert plan_samples(100, TrainConfig(), world_size=2, sampler=None).size == 100


def test_a_sampler_has_the_same_length_in_each_epoch() -> None:
    plan = plan_samples(100, TrainConfig(), world_size=1, sampler=lambda epoch: range(30 + epoch))
    with pytest.raises(KubetrainError, match=r"sampler\(2\) returned 32 samples, but sampler\(0\) 30"):
        next(plan.batches(2, rank=0))


@pytest.mark.parametrize("order", [[0.5], [None], None, 3])
def test_a_sampler_returns_whole_numbers(order: object) -> None:
    with pytest.raises(KubetrainError, match=r"sampler\(0\) must return the indices of samples"):
        plan_samples(100, TrainConfig(), world_size=1, sampler=lambda epoch: order)  # type: ignore[arg-type,return-value]


@pytest.mark.parametrize("index", [100, -1])
def test_a_sampler_that_selects_what_is_not_there_is_named(index: int) -> None:
    plan = plan_samples(100, TrainConfig(), world_size=1, sampler=lambda epoch: [0, 1, index])
    with pytest.raises(KubetrainError, match=rf"sampler\(3\) returned the index {index}, but the data has .* 0 to 99"):
        list(plan.batches(epoch=3, rank=0))


def test_a_sampler_that_differs_between_calls_or_processes_is_refused() -> None:
    check_sampler(balanced, FakeGroup(0, lambda values: [values[0]] * 2))
    calls = iter(range(9))
    with pytest.raises(KubetrainError, match="returned other samples when it was called again"):
        check_sampler(lambda epoch: balanced(next(calls)), FakeGroup(0, lambda values: [values[0]] * 2))
    with pytest.raises(KubetrainError, match="or in another process"):
        check_sampler(balanced, FakeGroup(0, lambda values: [values[0], values[0] + 1]))


@pytest.mark.parametrize(
    ("size", "settings", "steps_per_epoch"),
    [
        (100, {}, 6),
        (7, {}, 1),
        (None, {"max_steps": 30, "epochs": 3}, 10),
        (None, {"max_steps": 31, "epochs": 3}, 11),
        (100, {"max_steps": 30}, 6),
    ],
)
def test_the_epoch_of_a_stream_is_its_length_or_a_part_of_max_steps(
    size: int | None, settings: dict[str, int], steps_per_epoch: int
) -> None:
    plan = stream_plan(size, TrainConfig(batch_size=8, **settings), world_size=2)
    assert plan.steps_per_epoch == steps_per_epoch
    batches = list(plan.batches(0, rank=1))
    assert [(len(batch.indices), batch.global_size) for batch in batches] == [(8, 16)] * steps_per_epoch


def test_a_stream_needs_to_say_how_long_an_epoch_is() -> None:
    with pytest.raises(InvalidSetting, match="max_steps must be set, because the training data has no len"):
        stream_plan(None, TrainConfig(), world_size=1)


def test_a_stream_has_no_global_batch_size() -> None:
    with pytest.raises(InvalidSetting, match="global_batch_size must be 0, because the training data can only be read"):
        stream_plan(100, TrainConfig(global_batch_size=64), world_size=1)


def test_a_stream_resumes_with_other_processes_in_the_same_epoch_or_after_it() -> None:
    plan = stream_plan(100, TrainConfig(batch_size=8), world_size=1)
    assert plan.size == 96
    resumed = plan.resumed(TrainingProgress(step=3, epoch=1, samples_in_epoch=60))
    assert len(list(plan.batches(1, 0, resumed.samples_in_epoch))) == 5, "the last step begins the next epoch"
    assert plan.resumed(TrainingProgress(epoch=1, samples_in_epoch=96)).epoch == 2


def test_a_stream_without_a_length_takes_all_its_steps_with_other_processes() -> None:
    config = TrainConfig(batch_size=8, max_steps=24, epochs=3)
    plan = stream_plan(None, config, world_size=1)
    resumed = plan.resumed(TrainingProgress(step=5, samples_in_epoch=5 * 16))  # by two processes
    assert len(list(remaining_batches(plan, config, resumed, rank=0))) == 19


def progress(step: int, epoch: int, samples: int) -> TrainingProgress:
    return TrainingProgress(step=step, epoch=epoch, samples_in_epoch=samples, samples_seen=0)


@pytest.mark.parametrize(
    ("reached", "max_steps", "expected"),
    [
        (progress(0, 0, 0), 0, [(0, 4), (0, 4), (0, 2), (1, 4), (1, 4), (1, 2), (2, 4), (2, 4), (2, 2)]),
        (progress(4, 1, 4), 0, [(1, 4), (1, 2), (2, 4), (2, 4), (2, 2)]),
        (progress(4, 1, 4), 7, [(1, 4), (1, 2), (2, 4)]),
        (progress(7, 2, 4), 7, []),
        (progress(8, 2, 8), 7, []),
        (progress(9, 3, 0), 0, []),
    ],
)
def test_the_remaining_batches_end_with_the_training(
    reached: TrainingProgress, max_steps: int, expected: list[tuple[int, int]]
) -> None:
    config = TrainConfig(epochs=3, batch_size=4, max_steps=max_steps)
    batches = list(remaining_batches(plan_samples(10, config, 1, None), config, reached, rank=0))
    assert [(batch.epoch, batch.global_size) for batch in batches] == expected
    assert all(batch.keys == [(batch.epoch, index) for index in batch.indices] for batch in batches)
