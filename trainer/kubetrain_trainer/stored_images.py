"""The images of a dataset: in folders, or in tar shards."""

from pathlib import Path
from types import ModuleType

from kubetrain_trainer import image_folder, tar_shards
from kubetrain_trainer.config import TrainConfig


def source_of(config: TrainConfig, data_dir: Path) -> ModuleType:
    """Return the module that lists the images.

    Raises:
        KubetrainError: if the test images have classes of their own, which an evaluation would find out too late.
    """
    if config.data == "tar_shards":
        return tar_shards
    if (data_dir / config.test_split).is_dir():
        image_folder.check_classes(data_dir, config.test_split)
    return image_folder
