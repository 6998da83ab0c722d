"""A Ctrl-C in the middle of what must not be left half done takes effect after it."""

import signal

import pytest

from kubetrain_components.interrupts import interrupts_deferred
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
