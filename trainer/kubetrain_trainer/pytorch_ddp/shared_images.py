"""Lists of images in shared memory: loading processes get them without a copy."""

from dataclasses import replace
from functools import singledispatch
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from kubetrain_trainer.image_folder import ImageFolder, PackedNames
from kubetrain_trainer.shard_index import ShardIndex
from kubetrain_trainer.tar_shards import TarShards


class SharedArray(np.ndarray):
    """An array whose memory other processes see, because torch sends them a tensor by its file."""

    _tensor: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> Self:
        array: Self = tensor.share_memory_().numpy().view(cls)  # type: ignore[no-untyped-call]
        array._tensor = tensor
        return array

    def __reduce__(self) -> Any:
        return SharedArray.of, (self._tensor,)


def share(values: Any) -> Any:
    if isinstance(values, SharedArray):
        return values
    numbers = np.frombuffer(values, np.uint8) if isinstance(values, bytearray) else values
    return SharedArray.of(torch.from_numpy(np.array(numbers)))


@singledispatch
def shared(images: Any) -> Any:
    """Return the images with their lists in shared memory."""
    return images


@shared.register
def _(images: ImageFolder) -> ImageFolder:
    names = PackedNames(share(images.paths.text), share(images.paths.ends))
    return replace(images, paths=names, labels=share(images.labels))


@shared.register
def _(images: TarShards) -> TarShards:
    index = ShardIndex(*map(share, (images.index.offsets, images.index.sizes, images.index.labels)))
    return replace(images, index=index)
