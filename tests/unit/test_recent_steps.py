"""NaN and infinite losses and gradients are detected in checks, reported by all processes, and skipped if set."""

import logging
import math
import threading
from collections.abc import Callable

import pytest

from kubetrain_trainer.loop.recent_steps import FIRST_FACTOR, MAX_SKIPPED, NotFinite, RecentSteps
from kubetrain_trainer.settings.config import TrainConfig
from support.training import FakeGroup

PROCESSES = 2


class Group:
    """Threads in place of processes. Each sum waits for all of them."""

    def __init__(self) -> None:
        self._given: list[list[float]] = [[]] * PROCESSES
        self._barrier = threading.Barrier(PROCESSES, timeout=60)

    def sum(self, rank: int, values: list[float]) -> list[float]:
        self._given[rank] = values
        self._barrier.wait()
        sums = [sum(column) for column in zip(*self._given, strict=True)]
        self._barrier.wait()
        return sums


def in_all_processes(program: Callable[[RecentSteps, int], object], **settings: str) -> list[str]:
    """Return what the program returns or raises in each process."""
    group, results = Group(), [""] * PROCESSES

    def run(rank: int) -> None:
        member = FakeGroup(rank, lambda values: group.sum(rank, values))
        recent = RecentSteps(TrainConfig.from_dict(settings), member, lambda: "resume like this")
        try:
            results[rank] = str(program(recent, rank))
        except NotFinite as error:
            results[rank] = str(error)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(PROCESSES)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return results


def test_the_means_are_over_processes_and_steps_since_the_last_call() -> None:
    def train(recent: RecentSteps, rank: int) -> list[dict[str, float]]:
        recent.accept_step(1, 0.1, 1.0 + rank, 1.0)
        recent.check()  # before a checkpoint
        recent.accept_step(2, 0.1, 3.0 + rank, 2.0)
        return [recent.means(), recent.means()]

    first, then = ({"loss": loss, "gradient_norm": norm} for loss, norm in ((2.5, 1.5), (math.nan, math.nan)))
    assert in_all_processes(train) == [str([first, then])] * PROCESSES


@pytest.mark.parametrize(
    ("losses", "norm", "message"),
    [
        ((math.nan, 1.0), 1.0, "the loss of rank 0 is nan at step 2, with a learning rate of 0.2: most often"),
        ((math.inf, math.inf), math.nan, "the loss of rank 0 and 1 is inf at step 2"),
        ((1.0, 1.0), math.inf, "the gradient is inf at step 2"),
    ],
)
def test_the_first_bad_step_is_reported_by_all_processes(losses: tuple[float, ...], norm: float, message: str) -> None:
    def train(recent: RecentSteps, rank: int) -> None:
        for step, (loss, its_norm) in enumerate([(1.0, 1.0), (losses[rank], norm), (math.nan, math.nan)], start=1):
            assert recent.accept_step(step, step / 10, loss, its_norm), "no check is due yet"
        recent.check()

    results = in_all_processes(train)
    assert results[0] == results[1]
    assert results[0].startswith(message)
    assert results[0].endswith("; resume like this")
    assert len(results[0]) < 600, "Kubernetes shows no more"


def test_a_bad_step_is_skipped_by_all_processes_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)

    def train(recent: RecentSteps, rank: int) -> object:
        accepted = [recent.accept_step(step, 0.1, math.nan if step == rank else 1.0, 1.0) for step in range(4)]
        return accepted, recent.skipped, recent.means()["loss"]

    assert in_all_processes(train, on_nan="skip") == [str(([False, False, True, True], 2, 1.0))] * PROCESSES
    assert caplog.messages == [
        f"skipped a step: the loss of rank {step} is nan at step {step}, with a learning rate "
        f"of 0.1 ({step + 1} skipped so far)"
        for step in range(2)
    ]


def test_in_fp16_all_processes_skip_a_gradient_that_overflows_and_halve_the_scale_of_the_loss() -> None:
    def train(recent: RecentSteps, rank: int) -> object:
        accepted = [recent.accept_step(step, 0.1, 1.0, math.inf if step == 1 else 1.0) for step in range(3)]
        return accepted, recent.loss_scale.factor

    assert in_all_processes(train, precision="fp16") == [str(([True, False, True], FIRST_FACTOR / 2))] * PROCESSES


def test_too_many_bad_steps_in_a_row_fail_the_training() -> None:
    def train(recent: RecentSteps, rank: int) -> None:
        for step in range(1, MAX_SKIPPED):
            recent.accept_step(step, 0.1, math.nan, 1.0)
        recent.accept_step(MAX_SKIPPED, 0.1, 1.0, 1.0)
        for step in range(1, MAX_SKIPPED + 1):
            recent.accept_step(MAX_SKIPPED + step, 0.1, math.nan, 1.0)
            assert step < MAX_SKIPPED

    results = in_all_processes(train, on_nan="skip")
    assert results[0] == results[1]
    assert "at step 20, with a learning rate of 0.1, and the 9 steps before it were not finite either: " in results[0]
