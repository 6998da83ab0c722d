"""Damaged images that a training leaves out."""

import pytest

from kubetrain_trainer.left_out import DamagedImage, LeftOut


def test_an_image_that_two_loading_processes_find_damaged_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = LeftOut(2)
    for _ in range(2):
        left_out.add(3, DamagedImage("three is damaged"))
    left_out.add(5, DamagedImage("five is damaged"))
    assert capsys.readouterr().out.splitlines() == [
        "three is damaged. It is left out, 1 of 2 (skip_damaged)",
        "five is damaged. It is left out, 2 of 2 (skip_damaged)",
    ]
    left_out.add(5, DamagedImage("five is damaged"))
    with pytest.raises(DamagedImage, match="seven"):
        left_out.add(7, DamagedImage("seven is damaged"))
