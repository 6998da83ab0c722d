"""The loader that batches samples by their indices."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, reduce
from itertools import chain, groupby, islice, pairwise
from typing import Any

import numpy as np
import tensorflow as tf

from kubetrain_trainer.tensorflow_multiworker.data import IMAGES_PER_READ

Collate = Callable[[tf.data.Dataset, int], tf.data.Dataset]


def batch_samples(samples: tf.data.Dataset, size: int) -> tf.data.Dataset:
    return samples.batch(size)


def load(samples: Any, batches: Sequence[Sequence[int]], collate: Collate = batch_samples) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of samples with these indices, in this order."""
    loaded = 0
    try:
        for batch in loader(samples, batches, collate):
            yield batch
            loaded += 1
    except tf.errors.OpError:
        # A graph does not report the sample that it failed on. Load the candidates one by one to find it.
        for index in islice(chain.from_iterable(batches[loaded:]), len(batches[loaded]) + IMAGES_PER_READ):
            samples.load(tf.constant(index))
        raise


def loader(samples: Any, batches: Sequence[Sequence[int]], collate: Collate) -> Iterable[tuple[Any, Any]]:
    """Concatenate one dataset per batch size. All batches of an epoch except the last have the same size."""
    parts = []
    for size, group in groupby(batches, key=len):
        indices = np.concatenate([np.asarray(batch, np.int64) for batch in group])
        part = tf.data.Dataset.from_tensor_slices(indices)
        if hasattr(samples, "read"):
            part = samples.read(part)
        parts.append(collate(part.map(_traced(samples.load), num_parallel_calls=tf.data.AUTOTUNE), size))
    if not parts:
        return ()
    return reduce(lambda loaded, part: loaded.concatenate(part), parts).prefetch(tf.data.AUTOTUNE)


@lru_cache(maxsize=8)
def _traced(load_one: Callable[..., Any]) -> Any:
    """Trace once instead of at the start of each epoch."""
    return tf.function(load_one)


def split(batch: Any, parts: int) -> list[Any]:
    """Split a batch of any structure into about equal parts, in order."""
    if parts == 1:
        return [batch]
    size = tf.shape(tf.nest.flatten(batch)[0])[0]
    bounds = [size * part // parts for part in range(parts + 1)]
    return [
        tf.nest.map_structure(lambda tensor, part=slice(first, last): tensor[part], batch)
        for first, last in pairwise(bounds)
    ]
