"""The network of a published model, which predicts as in its evaluation."""

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn

from kubetrain_trainer.data.given_images import check_pixels, given_images, refused_image
from kubetrain_trainer.models.load_model import LoadedModel
from kubetrain_trainer.pytorch_ddp.evaluate import evaluating, probabilities
from kubetrain_trainer.pytorch_ddp.export import load_weights
from kubetrain_trainer.pytorch_ddp.images.decoded_images import StoredImages
from kubetrain_trainer.pytorch_ddp.model import build_model, fill
from kubetrain_trainer.pytorch_ddp.precision import forward
from kubetrain_trainer.pytorch_ddp.structures import to_device
from kubetrain_trainer.pytorch_ddp.task import build_task
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import is_own_code

PNG_MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "I;16")


def build_network(config: TrainConfig, classes: Sequence[str], data_dir: Path) -> nn.Module:
    if not is_own_code(config):
        return build_model(config.model, len(classes), config.model_args)
    model = build_task(config, data_dir).model
    fill(model, torch.device("cpu"))
    return model


@dataclass(frozen=True, kw_only=True)
class Loaded(LoadedModel):
    network: nn.Module

    @property
    def device(self) -> torch.device:
        """Where the network is, which you may move."""
        return next((parameter.device for parameter in self.network.parameters()), torch.device("cpu"))

    def load(self, folder: Path) -> None:
        load_weights(folder, self.model_json["files"], self.network, self.device)
        self.network.eval()

    def outputs_of_images(self, images: Sequence[Any]) -> Tensor:
        samples, size = StoredImages(given_images(images, png_of), self.config), self.config.batch_size
        numbers = range(len(samples))
        batches = [numbers[first : first + size] for first in range(0, len(samples), size)]
        return torch.cat([self._outputs_of_samples(samples, batch) for batch in batches])

    def _outputs_of_samples(self, samples: StoredImages, batch: Sequence[int]) -> Tensor:
        pixels = torch.stack([samples[number][0] for number in batch])
        outputs: Tensor = self.outputs_of_batch(samples.prepare(pixels.to(self.device)))
        return outputs

    def outputs_of_batch(self, batch: Any) -> Any:
        with evaluating(self.network), torch.no_grad():
            return forward(self.network, to_device(batch, self.device), self.config, self.device)

    def probabilities(self, outputs: Any) -> list[list[float]]:
        rows: list[list[float]] = probabilities(outputs).tolist()
        return rows


def png_of(image: Any) -> bytes:
    """
    Raises:
        KubetrainError: if this is neither a Pillow image nor an array of one.
    """
    picture = image if isinstance(image, Image.Image) else _picture_of(image)
    buffer = io.BytesIO()
    (picture if picture.mode in PNG_MODES else picture.convert("RGB")).save(buffer, "PNG")
    return buffer.getvalue()


def _picture_of(image: Any) -> Image.Image:
    try:
        array = np.asarray(image)
        check_pixels(image, array)
        return Image.fromarray(array)
    except (TypeError, ValueError) as error:
        raise refused_image(image) from error
