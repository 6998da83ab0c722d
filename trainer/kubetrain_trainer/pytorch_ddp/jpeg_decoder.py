"""The choice of what decodes the JPEG files of a training: the GPU, or the loading processes."""

import io
from functools import cache

import torch
from PIL import Image

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.model_names import is_own_code
from kubetrain_trainer.pytorch_ddp.jpeg_files import UndecodedFiles, decode

WITH_DECODER = ((8, 0), (9, 0), (10, 0), (10, 3))
"""The compute capabilities of GPUs with a decoder of their own, such as A100, H100 and B200. With others, the process
that trains would decode most of each file, one after the other."""


def decodes_on_gpu(config: TrainConfig) -> bool:
    """
    Raises:
        InvalidSetting: if the setting asks for it, but nothing can.
    """
    if config.jpeg_decoder == "auto":
        return not config.augmentation.colors and has_decoder() and not obstacle()
    if config.jpeg_decoder == "gpu" and (cause := obstacle()):
        raise InvalidSetting(f"jpeg_decoder cannot be gpu: {cause}")
    return config.jpeg_decoder == "gpu"


def has_decoder() -> bool:
    return torch.cuda.is_available() and torch.cuda.get_device_capability() in WITH_DECODER


@cache
def obstacle() -> str:
    """Return why no GPU decodes here, or an empty string."""
    if not torch.cuda.is_available():
        return "this process has no GPU"
    file, device = io.BytesIO(), torch.device("cuda", torch.cuda.current_device())
    Image.new("RGB", (64, 64)).save(file, "JPEG")
    try:
        decode([torch.frombuffer(file.getbuffer(), dtype=torch.uint8)], device)
    except ImportError:
        return "torchvision is missing: install it by `pip install torchvision`"
    except UndecodedFiles as error:
        return f"torchvision cannot decode with this GPU ({error})"
    return ""


def describe_decoder(config: TrainConfig) -> str:
    """Return what decodes the JPEG files of a model by name, if that might be a GPU."""
    if not torch.cuda.is_available() or config.data == "synthetic" or is_own_code(config):
        return ""
    return f"JPEG decoded by the {'GPU' if decodes_on_gpu(config) else 'CPU'}"
