"""What is drawn to change training images."""

import math
import random
from itertools import chain
from typing import Any

import pytest

from kubetrain_trainer.data.sampling import plan_samples
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.settings.augmentation import (
    MOVES,
    NOTHING,
    UNCHANGED,
    WHOLE,
    Box,
    Color,
    Drawn,
    Recipe,
    combined,
    draw,
)
from kubetrain_trainer.settings.config import TrainConfig

EVERYTHING = Recipe(crop_area=0.1, flip=0.5, color_jitter=0.4, rand_augment=3, erase=0.5, mixup=0.2, cutmix=1.0)


def drawn(recipe: Recipe, times: int = 500) -> list[Drawn]:
    return [draw(recipe, random.Random(seed)) for seed in range(times)]


def area(box: Box) -> float:
    left, top, right, bottom = box
    assert 0 <= left <= right <= 1 + 1e-9
    assert 0 <= top <= bottom <= 1 + 1e-9
    return (right - left) * (bottom - top)


def test_crops_keep_a_part_of_about_the_shape_of_the_result() -> None:
    crops = [each.cropped(500, 375) for each in drawn(Recipe(crop_area=0.25))]
    areas = [area(crop) for crop in crops]
    assert min(areas) > 0.2  # less than the smallest part only where the image is not high enough for it
    assert 0.5 < sum(areas) / len(areas) < 0.65
    ratios = [500 * (right - left) / (375 * (bottom - top)) for left, top, right, bottom in crops]
    assert 0.74 < min(ratios) < 0.78
    assert 1.28 < max(ratios) < 1.34
    lefts, tops = [crop[0] for crop in crops], [crop[1] for crop in crops]
    assert max(lefts) > 0.4
    assert max(tops) > 0.3


def test_each_part_happens_as_often_as_it_says() -> None:
    several = drawn(EVERYTHING, 2000)
    assert sum(each.is_flipped for each in several) / 2000 == pytest.approx(0.5, abs=0.04)
    erased = [area(each.erased) for each in several if each.erased != NOTHING]
    assert len(erased) / 2000 == pytest.approx(0.5, abs=0.04)
    assert 0 < min(erased) < max(erased) < 0.34
    blended = [weight for weight, part in (each.mixed for each in several) if part == WHOLE]
    assert len(blended) / 2000 == pytest.approx(0.5, abs=0.04)
    assert sum(min(each, 1 - each) < 0.1 for each in blended) > len(blended) / 2, "alpha 0.2 rarely blends evenly"
    replaced = [area(part) for weight, part in (each.mixed for each in several) if part != WHOLE]
    assert sum(replaced) / len(replaced) == pytest.approx(0.5, abs=0.05)


def test_rand_augment_moves_pixels_and_changes_colors() -> None:
    several = drawn(Recipe(rand_augment=2))
    kinds = {kind for each in several for kind, _ in each.colors}
    assert kinds == {*Color}
    moved = [each for each in several if each.affine != UNCHANGED]
    assert len(moved) / 500 == pytest.approx(1 - (9 / 14) ** 2, abs=0.06)
    assert {len(each.colors) for each in several} == {0, 1, 2}
    for kind, amount in chain.from_iterable(each.colors for each in several):
        least, most = {Color.POSTERIZE: (7, 7), Color.SOLARIZE: (178, 179)}.get(kind, (0.73, 1.27))
        assert least <= amount <= most


def test_nothing_changes_without_a_recipe() -> None:
    [nothing] = {(each.is_flipped, each.affine, each.colors, each.erased, each.mixed[0]) for each in drawn(Recipe())}
    assert nothing == (False, UNCHANGED, (), NOTHING, 0)


def test_moves_are_combined() -> None:
    quarter = (math.cos(math.pi / 2), math.sin(math.pi / 2), 0.0, -math.sin(math.pi / 2), math.cos(math.pi / 2), 0.0)
    shifted = combined(MOVES["translate_x"](1.0), quarter)
    assert shifted == pytest.approx((0, 1, 0.45, -1, 0, 0))
    back = combined(shifted, combined((0.0, -1.0, 0.0, 1.0, 0.0, 0.0), MOVES["translate_x"](-1.0)))
    assert back == pytest.approx(UNCHANGED)


def test_what_was_drawn_once_is_drawn_again() -> None:
    """Resumed trainings need it, even in another Python version."""
    first = draw(EVERYTHING, random.Random(1))
    assert first.crop == pytest.approx((0.525021, 0.933079, 0.209955, 0.487857), abs=1e-6)
    assert [(kind.name, round(amount, 3)) for kind, amount in first.colors] == [
        *(("BRIGHTNESS", 0.912), ("CONTRAST", 1.086), ("SATURATION", 1.214)),
        *(("CONTRAST", 0.73), ("SHARPNESS", 0.73), ("AUTOCONTRAST", 1.27)),
    ]
    assert first.mixed == (1, pytest.approx((0.083501, 0.079628, 0.995165, 0.991293), abs=1e-6))


@pytest.mark.parametrize(
    ("settings", "recipe"),
    [
        ({}, Recipe()),
        ({"recipe": "standard"}, Recipe(crop_area=0.25, flip=0.5)),
        ({"recipe": "standard", "augment": {"flip": 0, "erase": 0.1}}, Recipe(crop_area=0.25, erase=0.1)),
        ({"augment": {"flip": 0.5}}, Recipe(flip=0.5)),
        (
            {"recipe": "strong", "augment": {"crop_area": 1, "rand_augment": 0}},
            Recipe(flip=0.5, erase=0.25, mixup=0.2, cutmix=1),
        ),
    ],
)
def test_a_setting_replaces_a_part_of_the_recipe(settings: dict[str, Any], recipe: Recipe) -> None:
    assert TrainConfig.from_dict(settings).augmentation == recipe


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "synthetic", "recipe": "standard"}, "train.recipe and train.augment are for images from files"),
        ({"data": "synthetic", "augment": {"flip": 0.5}}, "train.recipe and train.augment are for images from files"),
        (
            {"augment": {"mixup": 0.2}, "batch_size": 7},
            "batch_size must be even, not 7, because mixup and cutmix mix two",
        ),
        ({"augment": {"cutmix": 1}, "global_batch_size": 33}, "global_batch_size must be even, not 33"),
        ({"recipe": "weak"}, "recipe"),
        ({"augment": {"crop_area": 2}}, "train.augment.crop_area must be at most 1, not 2"),
        ({"augment": {"crop_area": 0}}, "crop_area must be at least 0.01, not 0"),
        ({"entry": {"script": "train.py"}, "recipe": "standard"}, "train.recipe is for the trainer's loop: your"),
        ({"entry": {"script": "train.py"}, "evaluation_crop": 0.5}, "train.evaluation_crop is for the trainer's loop"),
        ({"entry": {"script": "train.py"}, "profile_steps": "1:2"}, "train.profile_steps is for the trainer's loop"),
    ],
)
def test_what_cannot_be_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        TrainConfig.from_dict(settings)


def test_each_process_needs_images_to_mix() -> None:
    config = TrainConfig(batch_size=4, augment={"mixup": 0.2})
    assert all(len(batch.indices) for rank in range(3) for batch in plan_samples(5, config, 3, None).batches(0, rank))
    with pytest.raises(KubetrainError, match="has 4 samples, but 3 processes need at least 5"):
        plan_samples(4, config, 3, sampler=None)


@pytest.mark.parametrize("size", [64, 65, 100, 127, 9])
def test_pairs_are_the_same_for_any_number_of_processes(size: int) -> None:
    def pairs(world_size: int, start: int = 0) -> set[tuple[int, ...]]:
        plan = plan_samples(size, TrainConfig(batch_size=4, augment={"mixup": 0.2}), world_size, sampler=None)
        shares = [batch.indices for rank in range(world_size) for batch in plan.batches(3, rank, start)]
        assert all(len(share) >= 2 for share in shares)
        return {tuple(share[first : first + 2]) for share in shares for first in range(0, len(share), 2)}

    of_one = pairs(1)
    assert len(of_one) == -(-size // 2)
    assert sorted(chain(*of_one)) == list(range(size))
    assert pairs(2) == pairs(3) == pairs(4) == of_one
    assert pairs(2, start=4) | pairs(1) == of_one
