"""Print as JSON how many training images per second and CPU TensorFlow's loader decodes and changes, by recipe.

python benchmarks/trainers/augmenting_tensorflow.py FOLDER RECIPE...

It is a program of its own, because PyTorch and TensorFlow do not work in one process.
"""

import json
import sys
import time
from pathlib import Path

from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker.loading import keep_memory, load
from kubetrain_trainer.tensorflow_multiworker.task import build_task

BATCH, PASSES = 32, 8


def rate(folder: Path, recipe: str) -> float:
    """Return the rate of the second epoch, as the first one traces the graph.

    An epoch reads the folder several times, because the start of one takes as long as many images.
    """
    config = TrainConfig(model="keras:resnet18", recipe=recipe, image_size=224, batch_size=BATCH)
    task = build_task(config, folder)
    samples = task.training_data() if task.training_data else task.data("train")
    images = PASSES * len(samples) // BATCH * BATCH
    for epoch in range(2):
        keys = [(epoch, number % len(samples)) for number in range(images)]
        began = time.process_time()
        for _ in load(samples, (keys[first : first + BATCH] for first in range(0, images, BATCH)), task.collate):
            pass
    return images / (time.process_time() - began)


if __name__ == "__main__":
    keep_memory()
    print(json.dumps({recipe: rate(Path(sys.argv[1]), recipe) for recipe in sys.argv[2:]}))
