from kubetrain_trainer.loop.recent_steps import FIRST_FACTOR, STEPS_TO_DOUBLE, LossScale
from kubetrain_trainer.settings.config import TrainConfig

FP16 = TrainConfig(precision="fp16")


def test_a_gradient_that_overflows_halves_it_and_many_that_fit_double_it() -> None:
    scale = LossScale(FP16)
    scale.update(is_taken=False)
    scale.update(is_taken=False)
    assert scale.factor == FIRST_FACTOR / 4
    for _ in range(STEPS_TO_DOUBLE - 1):
        scale.update(is_taken=True)
    assert scale.factor == FIRST_FACTOR / 4
    scale.update(is_taken=True)
    assert scale.factor == FIRST_FACTOR / 2
    for _ in range(STEPS_TO_DOUBLE - 1):
        scale.update(is_taken=True)
    scale.update(is_taken=False)
    scale.update(is_taken=True)
    assert scale.factor == FIRST_FACTOR / 4, "an overflow counts from the beginning again"


def test_a_resumed_training_continues_with_it() -> None:
    before, after = LossScale(FP16), LossScale(FP16)
    for is_taken in (False, True, True):
        before.update(is_taken=is_taken)
    after.restore({"step": 3, **before.details()})
    for scale in (before, after):
        for _ in range(STEPS_TO_DOUBLE - 2):
            scale.update(is_taken=True)
    assert after.factor == before.factor == FIRST_FACTOR


def test_other_precisions_have_none() -> None:
    scale = LossScale(TrainConfig(on_nan="skip"))
    scale.update(is_taken=False)
    assert (scale.factor, scale.details()) == (1, {})
    scale.restore(LossScale(FP16).details())
    assert scale.factor == 1


def test_a_run_that_starts_from_one_of_another_precision_begins_with_the_first() -> None:
    scale = LossScale(FP16)
    scale.restore({"step": 3})
    assert scale.factor == FIRST_FACTOR
