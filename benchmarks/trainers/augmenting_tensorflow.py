"""Print as JSON how many training images per second and CPU TensorFlow's loader decodes and changes, by recipe.

python benchmarks/trainers/augmenting_tensorflow.py FOLDER RECIPE...

It is a program of its own, because PyTorch and TensorFlow do not work in one process.
"""

import json
import sys
import time
from pathlib import Path

from kubetrain_trainer.allocator import keep_freed_memory
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.sampling import plan_samples
from kubetrain_trainer.tensorflow_multiworker.loading import load
from kubetrain_trainer.tensorflow_multiworker.task import build_task

BATCH = 32


def rate(folder: Path, recipe: str) -> float:
    """Return the rate of the second epoch, as the first one traces the graph."""
    config = TrainConfig(model="keras:resnet18", recipe=recipe, image_size=224, batch_size=BATCH)
    task = build_task(config, folder)
    samples = task.training_data() if task.training_data else task.data("train")
    plan = plan_samples(len(samples), config, 1, None)
    for epoch in range(2):
        began = time.process_time()
        for _ in load(samples, (batch.keys for batch in plan.batches(epoch, 0)), task.collate):
            pass
    return len(samples) / (time.process_time() - began)


if __name__ == "__main__":
    keep_freed_memory()
    print(json.dumps({recipe: rate(Path(sys.argv[1]), recipe) for recipe in sys.argv[2:]}))
