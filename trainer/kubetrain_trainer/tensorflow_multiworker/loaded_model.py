"""The network of a published model, which predicts as in its evaluation."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer.data.given_images import check_pixels, given_images, refused_image
from kubetrain_trainer.data.sample_order import batches_of
from kubetrain_trainer.models.load_model import LoadedModel
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import image_size, is_own_code
from kubetrain_trainer.tensorflow_multiworker.checkpoint import load_weights
from kubetrain_trainer.tensorflow_multiworker.evaluate import predict, probabilities
from kubetrain_trainer.tensorflow_multiworker.images.decoded_images import StoredImages
from kubetrain_trainer.tensorflow_multiworker.loading import load
from kubetrain_trainer.tensorflow_multiworker.model import build_model
from kubetrain_trainer.tensorflow_multiworker.precision import use_precision
from kubetrain_trainer.tensorflow_multiworker.task import build_task

PNG_MODES = ("L", "LA", "RGB", "RGBA", "I;16")


def build_network(config: TrainConfig, classes: Sequence[str], data_dir: Path) -> keras.Model:
    before = keras.mixed_precision.global_policy()
    use_precision(config)
    try:
        if is_own_code(config):
            return build_task(config, data_dir).model
        return build_model(config.model, image_size(config), len(classes), config.model_args)
    finally:
        keras.mixed_precision.set_global_policy(before)


@dataclass(frozen=True, kw_only=True)
class Loaded(LoadedModel):
    network: keras.Model

    def load(self, folder: Path) -> None:
        load_weights(folder, self.model_json["files"], self.network)

    def outputs_of_images(self, images: Sequence[Any]) -> tf.Tensor:
        samples = StoredImages(given_images(images, png_of), self.config)
        batches = batches_of(range(len(samples)), self.config.batch_size)
        return tf.concat(
            [self.outputs_of_batch(samples.prepare(pixels)) for pixels, _ in load(samples, batches)], axis=0
        )

    def outputs_of_batch(self, batch: Any) -> Any:
        return predict(self.network, batch)

    def probabilities(self, outputs: Any) -> list[list[float]]:
        rows: list[list[float]] = probabilities(outputs).numpy().tolist()
        return rows


def png_of(image: Any) -> bytes:
    """
    Raises:
        KubetrainError: if this is neither a Pillow image nor an array of one.
    """
    needs_colors = hasattr(image, "convert") and image.mode not in PNG_MODES
    try:
        array = np.asarray(image.convert("RGB") if needs_colors else image)
        check_pixels(image, array)
        return bytes(tf.io.encode_png(array if array.ndim > 2 else array[..., None]).numpy())
    except (TypeError, ValueError, tf.errors.InvalidArgumentError) as error:
        raise refused_image(image) from error
