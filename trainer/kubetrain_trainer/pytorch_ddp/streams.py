"""Training data without indices: it can only be read in sequence, and each process keeps its own position in it."""

import copy
import io
import logging
import pickle  # only for its exception class; nothing is unpickled
from collections.abc import Iterable, Iterator, Sequence
from itertools import count, islice
from typing import Any

import torch
from torch.utils.data import DataLoader, IterableDataset, default_collate

from kubetrain_trainer.data.sample_order import Key, derived_seed
from kubetrain_trainer.data.sampling import Sampler
from kubetrain_trainer.data.stream_plan import StreamPlan, stream_plan
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.loading import (
    Collate,
    Delivery,
    Loaded,
    data_loader,
    loader_workers,
    own_messages,
    seed_generators,
)
from kubetrain_trainer.pytorch_ddp.structures import tensors_in
from kubetrain_trainer.settings.config import TrainConfig

Position = dict[str, Any]
"""The number of batches that were read, and what state_dict() of the data returned then."""
log = logging.getLogger(__name__)


def is_stream(samples: Any) -> bool:
    """Return True if the samples have no indices.

    Raises:
        KubetrainError: if nothing yields them either.
    """
    # torch's IterableDataset inherits an [index] that raises NotImplementedError.
    has_indices = hasattr(samples, "__getitem__") and hasattr(samples, "__len__")
    if has_indices and not isinstance(samples, IterableDataset):
        return False
    if not hasattr(samples, "__iter__"):
        raise KubetrainError(
            f"data returned a {type(samples).__name__}: return an object with len() and [index], or one that yields "
            "samples"
        )
    return True


def yields_batches(samples: Any) -> bool:
    return bool(getattr(samples, "yields_batches", False))


class StreamLoader:
    """The counterpart of a Loader. At most one worker process reads ahead, because the data has one position."""

    def __init__(
        self, samples: Any, config: TrainConfig, role: ProcessRole, device: torch.device, collate: Collate | None = None
    ) -> None:
        self._samples = samples
        self._config = config
        self._role = role
        self._device = device
        self._collate = collate or default_collate
        self._deliver = Delivery(samples, device)
        self._position: Position = {"batches": 0}
        self._endless: Iterator[Loaded] | None = None
        self._split: DataLoader[Any] | None = None
        self.size = len(samples) if hasattr(samples, "__len__") else None

    def plan(self, world_size: int, sampler: Sampler | None) -> StreamPlan:
        """Plan the epochs of a training with this data."""
        if sampler:
            raise KubetrainError("sampler has no use for training data without [index]: remove it from the Task")
        if self._role.is_rank_0 and not hasattr(self._samples, "state_dict"):
            log.warning("the training data has no state_dict(): a run that resumes reads it from its beginning again")
        return stream_plan(self.size, self._config, world_size)

    def load(self, batches: Iterable[Sequence[Key]]) -> Iterator[Loaded]:
        """Yield the next batches of this process, as many as these."""
        self._endless = self._endless or self._deliver_all(self._open(self._position))
        return (batch for _, batch in zip(batches, self._endless, strict=False))

    def load_split(self) -> Iterator[Loaded]:
        """Yield all batches that this process has, once."""
        if self._split is None:
            self._split = self._open(position=None)
        return self._deliver_all(self._split)

    def first_inputs(self) -> None:
        """Return no inputs: reading them would change the position."""

    def position(self) -> Position:
        """Return the position after the last batch that was loaded.

        Raises:
            KubetrainError: if a checkpoint cannot hold it.
        """
        return _reloaded(self._position)

    def resume_at(self, positions: Sequence[Position] | None) -> None:
        """Continue at this process's position, if as many processes have saved theirs."""
        if positions is not None and len(positions) == self._role.world_size:
            self._position = positions[self._role.rank]
        elif self._role.is_rank_0:
            saved = f"{len(positions)} processes" if positions else "none"
            log.warning(
                "the training data is read from its beginning: its position was saved by %s, and %d resume",
                saved,
                self._role.world_size,
            )

    def _open(self, position: Position | None) -> "DataLoader[Any]":
        workers = min(1, loader_workers(self._config, self._role, self._device))
        seeds = (self._config.seed, self._role.rank)
        reading = Reading(self._samples, self._collate, self._config.batch_size, seeds, position)
        # Batches that were made elsewhere may be on the GPU already.
        pins = self._device.type == "cuda" and not yields_batches(self._samples)
        return data_loader(reading, workers, batch_size=None, collate_fn=_unchanged, pin_memory=pins)

    def _deliver_all(self, loader: "DataLoader[Any]") -> Iterator[Loaded]:
        with own_messages():
            for batch, samples, self._position in loader:
                yield self._deliver(batch, samples)


class Reading(IterableDataset[Any]):
    """Batches, each with the number of its samples and the position after it, read here or in a worker process."""

    def __init__(
        self, samples: Any, collate: Collate, batch_size: int, seeds: tuple[int, int], position: Position | None
    ) -> None:
        """Without a position, read the samples once from their beginning; with one, read them from there forever."""
        self._samples = samples
        self._collate = collate
        self._batch_size = batch_size
        self._seeds = seeds
        self._position = position

    def __iter__(self) -> Iterator[tuple[Any, int, Position]]:
        position = self._position or {}
        if "state" in position:
            self._samples.load_state_dict(position["state"])
        batches = self._batches(iter(self._samples) if self._position is None else self._forever())
        for number in count(position.get("batches", 0)):
            seed_generators(derived_seed(*self._seeds, number))  # a run that resumes draws the same random numbers
            if not (made := next(batches, None)):
                return
            yield *made, self._position_after(number)

    def _batches(self, items: Iterator[Any]) -> Iterator[tuple[Any, int]]:
        """Yield batches, each with the number of its samples."""
        if yields_batches(self._samples):
            yield from ((batch, self._checked_size(batch)) for batch in items)
            return
        while samples := list(islice(items, self._batch_size)):
            yield self._collate(samples), len(samples)

    def _checked_size(self, batch: Any) -> int:
        sizes = [len(tensor) for tensor in tensors_in(batch) if tensor.ndim]
        if not sizes:
            raise KubetrainError("the data yields a batch without tensors: let it yield tensors of inputs and targets")
        samples = sizes[-1]  # of the targets, because inputs may have another dimension first
        if self._position is not None and samples != self._batch_size:
            raise KubetrainError(
                f"the training data yields a batch of {samples} samples, but train.batch_size is {self._batch_size}: "
                "let it make batches of this size, and leave out a smaller last one"
            )
        return samples

    def _forever(self) -> Iterator[Any]:
        empty_passes = 0  # the first may be empty: a run may resume at the end
        while empty_passes < 2:
            empty_passes += 1
            for sample in self._samples:
                empty_passes = 0
                yield sample
        raise KubetrainError("the training data yields no samples when it is read from its beginning: check its files")

    def _position_after(self, number: int) -> Position:
        if self._position is None:
            return {}
        # A copy, because the next samples may change it before it is sent or saved.
        state = {"state": copy.deepcopy(self._samples.state_dict())} if hasattr(self._samples, "state_dict") else {}
        return {"batches": number + 1, **state}


def _unchanged(batch: Any) -> Any:
    return batch


def _reloaded(position: Position) -> Position:
    """Return the position as a checkpoint will give it back."""
    buffer = io.BytesIO()
    try:
        torch.save(position, buffer)
        buffer.seek(0)
        plain: Position = torch.load(buffer, weights_only=True)
    except (pickle.PickleError, TypeError, AttributeError) as error:
        raise KubetrainError(
            "state_dict() of the training data must consist of numbers, strings, tensors, lists and dicts, because "
            "checkpoints with other objects are not loaded: they may contain code"
        ) from error
    return plain
