"""A Ctrl-C in the middle of what must not be left half done takes effect after it, and none is lost."""

import signal
import sys
import time
from typing import Any

import pytest

from kubetrain_components.interrupts import Terminated, interrupted_by_sigterm, interrupts_deferred
from kubetrain_trainer.errors import KubetrainError


@pytest.mark.parametrize("failure", ["", "no quota"])
def test_an_interrupt_takes_effect_after_the_block_and_tells_its_failure(
    failure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = []
    with pytest.raises(KeyboardInterrupt) as interrupted, interrupts_deferred("stopping soon"):
        for _ in range(2):
            signal.raise_signal(signal.SIGINT)
            steps.append("done")
        if failure:
            raise KubetrainError(failure)
    assert steps == ["done", "done"]
    assert getattr(interrupted.value, "__notes__", []) == [failure] * bool(failure)
    assert capsys.readouterr().err == "stopping soon\n"


def test_a_failure_is_told_once_by_nested_blocks() -> None:
    with pytest.raises(KeyboardInterrupt) as interrupted, interrupts_deferred(), interrupts_deferred():
        signal.raise_signal(signal.SIGINT)
        raise KubetrainError("no quota")
    assert interrupted.value.__notes__ == ["no quota"]


@pytest.mark.parametrize(("number", "interruption"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)])
def test_an_interrupt_that_arrives_in_a_finalizer_is_heard(
    number: signal.Signals, interruption: type[BaseException]
) -> None:
    class Connection:
        def __del__(self) -> None:
            signal.raise_signal(number)

    hook = sys.unraisablehook
    with pytest.raises(interruption), interrupted_by_sigterm():
        Connection()
        time.sleep(60)
    assert sys.unraisablehook is hook


def test_other_errors_of_finalizers_are_reported_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    class Connection:
        def __del__(self) -> None:
            raise OSError("cannot close")

    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with interrupted_by_sigterm():
        Connection()
    [error] = [each.exc_value for each in reported]
    assert str(error) == "cannot close"
