"""The loader that batches samples by their indices."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache, partial
from itertools import chain, groupby, islice, pairwise
from threading import Event, Lock
from typing import Any, Self

import keras
import tensorflow as tf

from kubetrain_trainer.data.left_out import DamagedImage, LeftOut
from kubetrain_trainer.data.sample_order import Key, keys_of
from kubetrain_trainer.data.shard_groups import ShardGroups
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.resources import keep_freed_memory
from kubetrain_trainer.tensorflow_multiworker.images.decoded_images import IMAGES_PER_READ

BATCHES_AT_ONCE = 64
INDICES = tf.TensorSpec([None], tf.int64)
BEGINS_AT_ONCE = tf.data.Options()
BEGINS_AT_ONCE.experimental_warm_start = True
Collate = Callable[[tf.data.Dataset, int], tf.data.Dataset]


def keep_memory() -> None:
    """Keep freed memory. The first dataset of a Python generator undoes that setting, so it is made before."""
    list(tf.data.Dataset.from_generator(list, output_signature=INDICES))
    keep_freed_memory()


def check_samples(samples: Any) -> None:
    """Check that the samples of a split have indices.

    Raises:
        KubetrainError: if they do not.
    """
    if isinstance(samples, tf.data.Dataset):  # it has a load() too, which reads a file
        raise KubetrainError(
            "data returned a tf.data.Dataset, whose samples have no indices: return an object with len() and "
            "load(index) instead, and let load() do what the dataset's map() does"
        )
    if not (hasattr(samples, "__len__") and hasattr(samples, "load")):
        raise KubetrainError(
            f"data returned a {type(samples).__name__}: return an object with len() and load(index), TensorFlow "
            "operations that turn a sample's index into a pair of inputs and targets"
        )


def batch_samples(samples: tf.data.Dataset, size: int) -> tf.data.Dataset:
    return samples.batch(size)


def load(
    samples: Any, batches: Iterable[Sequence[Key]], collate: Collate = batch_samples, processes: int = 1
) -> Iterator[tuple[Any, Any]]:
    """Yield the batches of samples with these keys, in this order.

    Args:
        processes: The number of processes that read samples.
    """
    groups: ShardGroups | None = getattr(samples, "groups", None)
    awaited = Awaited(groups.read_ahead(batches, processes) if groups else batches, samples)
    while True:
        try:
            for batch in loader(samples, awaited, collate):
                awaited.pending.popleft()
                yield batch
            break
        except tf.errors.OpError:
            if failure := getattr(samples, "failure", None):
                raise failure from None
            pending = tuple(awaited.pending)
            candidates = islice(chain.from_iterable(pending), len(pending[0]) + IMAGES_PER_READ)
            if not leave_out_damaged(samples, (index for _, index in candidates)):
                raise
            awaited = Awaited(awaited.close(), samples)
    if awaited.failure:
        raise awaited.failure


def draw(samples: Any, collate: Collate, indices: Iterable[int]) -> list[float]:
    """Load these samples twice, and return the mean of each batch."""
    batches = map(tf.nest.flatten, load(samples, [keys_of(indices)] * 2, collate))
    return [sum(float(abs(tensor.numpy().astype(float)).mean()) for tensor in batch) for batch in batches]


def leave_out_damaged(samples: Any, candidates: Iterable[int]) -> bool:
    """Load the candidates one by one to find the one that fails, because a graph does not report it.

    Raises:
        DamagedImage: if it may not be left out.
    """
    for index in candidates:
        try:
            samples.load(tf.constant(index, tf.int64))
        except DamagedImage as damage:
            if not hasattr(samples, "left_out"):
                raise
            samples.left_out.add(index, damage)
            return True
        except Exception:  # noqa: BLE001 - a task's own function may raise any, and the graph's error says more
            return False
    return False


class Awaited:
    """The batches that are being loaded, as TensorFlow's threads take them. What is left out is replaced."""

    def __init__(self, batches: Iterable[Sequence[Key]], samples: Any) -> None:
        self._batches = iter(batches)
        self._left_out: LeftOut | None = getattr(samples, "left_out", None)
        self._count = len(samples) if self._left_out else 0
        self._lock = Lock()
        self._is_open = True
        self.pending: deque[Sequence[Key]] = deque()
        self.failure: Exception | None = None
        """The exception that ended the batches, such as that of a task's sampler. Those before are delivered first."""

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Sequence[Key]:
        with self._lock:
            if not self._is_open:
                raise StopIteration
            try:
                batch = self._next_batch()
            except StopIteration:
                raise
            except Exception as error:  # noqa: BLE001 - a task's own function may raise any
                self.failure = error
                raise StopIteration from None
            self.pending.append(batch)
            return batch

    def _next_batch(self) -> Sequence[Key]:
        batch = next(self._batches)
        if left_out := self._left_out:
            return [(epoch, left_out.stand_in(index, self._count)) for epoch, index in batch]
        return batch

    def close(self) -> Iterator[Sequence[Key]]:
        """Return the batches that were not loaded. TensorFlow's threads, which may still ask, get no more."""
        with self._lock:
            self._is_open = False
            return chain(tuple(self.pending), self._remaining())

    def _remaining(self) -> Iterator[Sequence[Key]]:
        yield from self._batches
        if self.failure:
            raise self.failure


def loader(samples: Any, batches: Iterable[Sequence[Key]], collate: Collate) -> Iterator[tuple[Any, Any]]:
    """Read one dataset per epoch and batch size. All batches of an epoch except the last have the same size.

    The next ones begin in a thread as soon as all keys are taken: those of this epoch, and the first of the next one.
    Each begins with nothing loaded, and building it takes up to half a second.
    """
    readers = (DatasetReader(samples, batches, collate) for _, batches in groupby(batches, key=epoch_and_size))
    # Keras keeps the precision of each thread apart, and a task's own function may build layers.
    policy = {"initializer": keras.config.set_dtype_policy, "initargs": (keras.config.dtype_policy(),)}
    with ThreadPoolExecutor(max_workers=1, **policy) as thread:
        begin = partial(thread.submit, next, readers, None)
        begun = deque([begin()])
        while reader := begun[0].result():
            for batch in reader.loaded:
                if begun[-1].done() and is_next_due(reader, begun[-1].result()):
                    begun.append(begin())
                yield batch
            begun.popleft()
            if not begun:  # a task's own function may leave out all batches of a dataset
                begun.append(begin())


def is_next_due(current: "DatasetReader", last: "DatasetReader | None") -> bool:
    return last is not None and last.epoch == current.epoch and last.taken.is_set()


class DatasetReader:
    """The batches of one dataset, of which TensorFlow's threads already load the first ones.

    What TensorFlow calls must not refer to this object: in a cycle, its iterator would live until Python ends, and then
    the process would not end.
    """

    def __init__(self, samples: Any, batches: Iterator[Sequence[Key]], collate: Collate) -> None:
        first = next(batches)
        self.epoch, size = epoch_and_size(first)
        # What is taken at once counts as read, so that a small cache might lose its shards too early.
        at_once = 1 if getattr(samples, "groups", None) else BATCHES_AT_ONCE
        self.taken = Event()
        joined = partial(join, chain([first], batches), at_once, self.taken)
        dataset = tf.data.Dataset.from_generator(joined, output_signature=INDICES).unbatch()
        if hasattr(samples, "read"):
            dataset = samples.read(dataset, self.epoch)
        loaded = collate(dataset.map(_traced(samples.load), num_parallel_calls=tf.data.AUTOTUNE), size)
        self.loaded = iter(loaded.prefetch(tf.data.AUTOTUNE).with_options(BEGINS_AT_ONCE))


def join(batches: Iterator[Sequence[Key]], at_once: int, taken: Event) -> Iterator[list[int]]:
    """Yield the indices of several batches at once, because calling Python for each takes longer.

    Args:
        taken: Set as soon as no more follow, some batches before they are loaded.
    """
    chunks = iter(lambda: [index for batch in islice(batches, at_once) for _, index in batch], [])
    several = next(chunks)
    for following in chunks:
        yield several
        several = following
    taken.set()
    yield several


def epoch_and_size(batch: Sequence[Key]) -> tuple[int, int]:
    epoch, _ = batch[0]
    return epoch, len(batch)


@lru_cache(maxsize=8)
def _traced(load_one: Callable[..., Any]) -> Any:
    """Trace once instead of at the start of each epoch."""
    return tf.function(load_one)


def preparation(samples: Any) -> Callable[[Any], Any]:
    """Return the samples' `prepare`, which turns loaded inputs into the model's on the device, or else no change."""
    prepare: Callable[[Any], Any] = getattr(samples, "prepare", _unchanged)
    return prepare


def _unchanged(inputs: Any) -> Any:
    return inputs


def split(batch: Any, micro_batches: int) -> list[Any]:
    """Split a batch of any structure into about equal micro-batches, in order."""
    if micro_batches == 1:
        return [batch]
    size = tf.shape(tf.nest.flatten(batch)[0])[0]
    bounds = [size * number // micro_batches for number in range(micro_batches + 1)]
    return [
        tf.nest.map_structure(lambda tensor, rows=slice(first, last): tensor[rows], batch)
        for first, last in pairwise(bounds)
    ]
