"""The loader that batches samples by their indices."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import chain, groupby, islice, pairwise
from typing import Any

import tensorflow as tf

from kubetrain_trainer.tensorflow_multiworker.images import IMAGES_PER_READ

BATCHES_AT_ONCE = 64
INDICES = tf.TensorSpec([None], tf.int64)
Collate = Callable[[tf.data.Dataset, int], tf.data.Dataset]


def batch_samples(samples: tf.data.Dataset, size: int) -> tf.data.Dataset:
    return samples.batch(size)


def load(
    samples: Any, batches: Iterable[Sequence[int]], collate: Collate = batch_samples, epoch: int = 0
) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of samples with these indices, in this order."""
    awaited: deque[Sequence[int]] = deque()
    try:
        for batch in loader(samples, noted(batches, awaited), collate, epoch):
            awaited.popleft()
            yield batch
    except tf.errors.OpError:
        # A graph does not report the sample that it failed on. Load the candidates one by one to find it.
        for index in islice(chain.from_iterable(tuple(awaited)), len(awaited[0]) + IMAGES_PER_READ):
            samples.load(tf.constant(index))
        raise


def noted(batches: Iterable[Sequence[int]], awaited: deque[Sequence[int]]) -> Iterator[Sequence[int]]:
    """Yield the batches, in TensorFlow's thread, and note them as those that are being loaded."""
    for batch in batches:
        awaited.append(batch)
        yield batch


def loader(samples: Any, batches: Iterable[Sequence[int]], collate: Collate, epoch: int) -> Iterator[tuple[Any, Any]]:
    """Read one dataset per batch size. All batches of an epoch except the last have the same size."""
    for size, group in groupby(batches, key=len):
        part = tf.data.Dataset.from_generator(partial(joined, group), output_signature=INDICES).unbatch()
        if hasattr(samples, "read"):
            part = samples.read(part, epoch)
        loaded = collate(part.map(_traced(samples.load), num_parallel_calls=tf.data.AUTOTUNE), size)
        yield from loaded.prefetch(tf.data.AUTOTUNE)


def joined(batches: Iterator[Sequence[int]]) -> Iterator[list[int]]:
    """Yield the indices of several batches at once, because calling Python for each takes longer."""
    while several := list(chain.from_iterable(islice(batches, BATCHES_AT_ONCE))):
        yield several


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
