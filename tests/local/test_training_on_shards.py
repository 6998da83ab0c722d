"""Training on digits in tar shards and on the folder that they were packed from, with equal results."""

import shutil
from itertools import count
from pathlib import Path

import pytest

from kubetrain_components.pack_dataset.plan import Sample
from kubetrain_trainer.data import image_folder, tar_shards
from kubetrain_trainer.output.training_output import TrainingOutput
from support.cli import kubetrain
from support.training import largest_difference, newest

IMAGES = {"train": 200, "val": 50, "test": 50}
SETTINGS = [f"--set=train.{pair}" for pair in ("epochs=2", "log_every=1", "batch_size=16", "recipe=strong")]


@pytest.fixture(scope="module")
def both(digits: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image folder and its shards, with file names whose keys keep the images in the same order."""
    folder = tmp_path_factory.mktemp("shards")
    for split, images in IMAGES.items():
        for number in range(images):
            label, index = divmod(10 * number, images)
            source = sorted((digits / split / str(label)).iterdir())[index // 10]
            target = folder / "image_folder" / name_with_key(split, str(label), number, number / images, 1 / images)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    packed = kubetrain("pack", folder / "image_folder", folder / "tar_shards", "--shard-size", "100KB")
    assert packed.exit_code == 0, packed.output
    return folder


def name_with_key(split: str, label: str, number: int, first: float, fraction: float) -> str:
    """Return a path whose key, as a fraction of all keys, is between `first` and `first + fraction`."""
    names = (f"{split}/{label}/{number:03}-{attempt}.png" for attempt in count())
    return next(name for name in names if first <= int(Sample(name, 0, 0).key[:16], 16) / 2**64 < first + fraction)


def test_the_images_come_in_the_same_order(both: Path) -> None:
    for split, images in IMAGES.items():
        folder = image_folder.list_images(both / "image_folder", split)
        shards = tar_shards.list_images(both / "tar_shards", split)
        assert list(shards.labels) == list(folder.labels)
        assert [shards.read(each) for each in range(images)] == [folder.read(each) for each in range(images)]
    assert len(list(both.glob("tar_shards/train/*.tar"))) > 2


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_run_on_shards_trains_like_one_on_the_folder(both: Path, framework: str, tmp_path: Path) -> None:
    folder = kubetrain(
        *("train", f"train-{framework}", "--data", both / "image_folder"),
        *("--output", tmp_path, "--run-id", "of-folder", *SETTINGS),
    )
    assert folder.exit_code == 0, folder.output
    shards = kubetrain(
        *("run", f"train-{framework}", "--workspace", tmp_path / "workspace", *SETTINGS),
        *("--set", f"data.uri={both / 'tar_shards'}", "--set", "data.format=tar_shards"),
    )
    assert shards.exit_code == 0, shards.output
    output = next((tmp_path / "workspace" / "output").iterdir())
    one, other = newest(tmp_path / "of-folder"), newest(output)
    assert one.manifest["world_size"] == other.manifest["world_size"] == 2
    assert one.manifest["metrics"] == other.manifest["metrics"]
    assert largest_difference(one, other) < 1e-6
    evaluation = TrainingOutput(output).read_evaluation()
    assert evaluation["samples"] == IMAGES["test"]
    assert all(each["picture"].startswith("data:image/png;base64,") for each in evaluation["misclassified"])
    assert evaluation["misclassified"]
