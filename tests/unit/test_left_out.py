"""Damaged images that a training leaves out."""

from pathlib import Path

import pytest

from kubetrain_trainer.data.given_images import GivenImages
from kubetrain_trainer.data.image_folder import list_images
from kubetrain_trainer.data.left_out import DamagedImage, LeftOut, damaged_image


def test_an_image_that_two_loading_processes_find_damaged_counts_once(capsys: pytest.CaptureFixture[str]) -> None:
    left_out = LeftOut(2)
    for _ in range(2):
        left_out.add(3, DamagedImage("three is damaged"))
    left_out.add(5, DamagedImage("five is damaged"))
    assert capsys.readouterr().out.splitlines() == [
        "three is damaged. It is left out, 1 of 2 (train.skip_damaged)",
        "five is damaged. It is left out, 2 of 2 (train.skip_damaged)",
    ]
    left_out.add(5, DamagedImage("five is damaged"))
    with pytest.raises(DamagedImage, match=r"^seven is damaged, or raise train.skip_damaged \(2\)$"):
        left_out.add(7, DamagedImage("seven is damaged"))
    with pytest.raises(DamagedImage, match=r"^eight is damaged, or set train.skip_damaged$"):
        LeftOut(0).add(8, DamagedImage("eight is damaged"))


def test_a_damaged_image_is_named_as_in_its_source(tmp_path: Path) -> None:
    """The copy that the training reads is made again by the next sync."""
    image = tmp_path / "versions/21e4/data/train/rose/zz.png"
    image.parent.mkdir(parents=True)
    image.touch()
    said = str(damaged_image(list_images(tmp_path / "versions/21e4/data", "train"), 0))
    assert said == (
        "train/rose/zz.png in the dataset is not an image that can be read: "
        "replace or remove it where the dataset comes from"
    )
    assert str(damaged_image(GivenImages([image]), 0)).startswith(f"{image} is not")
