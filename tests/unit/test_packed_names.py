"""Names in arrays: the same as in a list, and shared with loading processes instead of copied."""

from array import array
from multiprocessing import resource_sharer
from multiprocessing.reduction import ForkingPickler
from pathlib import Path

import pytest

from kubetrain_trainer.data.image_folder import ImageFolder, PackedNames
from kubetrain_trainer.settings.config import TrainConfig

NAMES = ["/data/a/1.png", "", "/data/ü/\udcff.png", "/data/b/\U0001f3d6.png"]


def test_packed_names_are_those_of_the_list() -> None:
    names = PackedNames.of(NAMES)
    assert [*names] == NAMES
    assert names[-1] == NAMES[-1]
    assert names[1:3] == NAMES[1:3]
    assert names.index(NAMES[2]) == 2
    for index in (4, -5):
        with pytest.raises(IndexError):
            names[index]
    assert [*PackedNames.of([])] == []


@pytest.fixture
def images(tmp_path: Path) -> ImageFolder:
    names = [str(tmp_path / f"{number}.png") for number in range(50_000)]
    return ImageFolder(classes=("a",), paths=PackedNames.of(names), labels=array("i", range(50_000)))


def test_loading_processes_share_the_list_of_images(images: ImageFolder) -> None:
    from kubetrain_trainer.pytorch_ddp.images.decoded_images import StoredImages

    stored = StoredImages(images, TrainConfig())
    try:
        sent = ForkingPickler.dumps(stored)
        again = ForkingPickler.dumps(stored)
        received = ForkingPickler.loads(sent)
    finally:
        resource_sharer.stop()
    assert len(sent) < 10_000
    assert abs(len(again) - len(sent)) < 100
    assert received._images.name(49_999) == images.name(49_999)
    assert len(received) == 50_000
    received._images.labels[7] = 123
    assert stored._images.labels[7] == 123, "the same memory"
