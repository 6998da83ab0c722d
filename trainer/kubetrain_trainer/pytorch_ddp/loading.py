"""The loader that batches samples by their indices, and copies the batches to the device."""

import contextlib
import multiprocessing
import os
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import tee
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

from kubetrain_trainer.data.left_out import DamagedImage, LeftOut
from kubetrain_trainer.data.sample_order import Key, batches_of, derived_seed, keys_of
from kubetrain_trainer.data.sampling import SamplePlan, Sampler, evaluation_indices, plan_samples
from kubetrain_trainer.data.shard_groups import ShardGroups
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.processes.resources import cpus_each
from kubetrain_trainer.pytorch_ddp.device_batches import copied, prefetched
from kubetrain_trainer.pytorch_ddp.structures import tensors_in, to_device
from kubetrain_trainer.settings.config import TrainConfig

Collate = Callable[[list[Any]], Any]
MAX_WORKERS_PER_PROCESS, BATCHES_AHEAD = 16, 16
"""Limits for each training process: 256 images of 224 pixels are 39 MB, and /dev/shm has 1 GiB by default."""


class Loaded(NamedTuple):
    """A batch on the device."""

    inputs: Any
    targets: Any
    samples: int


class Loader:
    """The worker processes of a loader live as long as it does."""

    def __init__(
        self, samples: Any, config: TrainConfig, role: ProcessRole, device: torch.device, collate: Collate | None = None
    ) -> None:
        self._samples, self._collate, self._device = samples, collate, device
        self._deliver = Delivery(samples, device)
        self._config = config
        self._role = role
        self._keys = Keys()
        self.size = len(samples)
        self._groups: ShardGroups | None = getattr(samples, "groups", None)
        workers = loader_workers(config, role, device)
        keyed = SeededSamples(samples, config.seed)
        pins = device.type == "cuda"
        self._loader = data_loader(keyed, workers, batch_sampler=self._keys, collate_fn=collate, pin_memory=pins)

    def plan(self, world_size: int, sampler: Sampler | None) -> SamplePlan:
        """Plan the epochs of a training with these samples."""
        return plan_samples(self.size, self._config, world_size, sampler, self._groups)

    def load(self, batches: Iterable[Sequence[Key]]) -> Iterator[Loaded]:
        """Yield the batches of samples with these keys, in this order."""
        ahead = self._groups.read_ahead(batches, self._role.world_size) if self._groups else batches
        # DataLoader reads the keys ahead for its workers. The same keys meet their batches again when these arrive.
        batches, self._keys.batches = tee(ahead)
        with own_messages():
            loaded = zip(batches, self._loader, strict=True)
            if self._device.type == "cpu":
                for keys, batch in loaded:
                    yield self._deliver(batch, len(keys))
            else:
                for keys, copying in prefetched(loaded, self._device):
                    yield self._deliver(copied(copying, self._device), len(keys))
        if self._keys.failure:
            raise self._keys.failure

    def load_split(self) -> Iterator[Loaded]:
        """Yield the samples that this process evaluates, each once."""
        indices = evaluation_indices(self.size, self._role.rank, self._role.world_size)
        return self.load(batches_of(indices, self._config.batch_size))

    def draw(self, indices: Iterable[int]) -> list[float]:
        """Load these samples twice, return the mean of each batch, and leave the random generators as they are."""
        before = random.getstate(), np.random.get_state()
        try:
            with torch.random.fork_rng(devices=[]):
                batches = [tensors_in(batch[:2]) for batch in self.load([keys_of(indices)] * 2)]
        finally:
            random.setstate(before[0])
            np.random.set_state(before[1])
        return [sum(float(tensor.double().abs().mean()) for tensor in batch) for batch in batches]

    def first_inputs(self) -> Any:
        """Return the inputs of two samples, for a trial."""
        [first] = self.load([keys_of(range(min(2, self.size)))])
        return first.inputs


class Keys:
    """The keys of the samples of each batch, which the loader reads a few batches ahead, also over ends of epochs."""

    batches: Iterable[Sequence[Key]] = ()
    failure: Exception | None = None
    """The exception of a task's sampler for the next epoch. The batches before it are delivered first."""

    def __iter__(self) -> Iterator[Sequence[Key]]:
        try:
            yield from self.batches
        except Exception as error:  # noqa: BLE001 - a task's own function may raise any
            self.failure = error


class Delivery:
    """Copies batches to the device, where the samples may prepare them further."""

    def __init__(self, samples: Any, device: torch.device) -> None:
        self._prepare = getattr(samples, "prepare", lambda inputs: inputs)
        self._device = device

    def __call__(self, batch: Any, samples: int) -> Loaded:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise KubetrainError(
                f"a batch is a {type(batch).__name__}: each sample, and what collate makes of several, must be a pair "
                "of inputs and targets"
            )
        # Images are copied as uint8 (batch, 3, height, width). The floats that `prepare` makes are four times larger.
        inputs, targets = to_device(batch[0], self._device), to_device(batch[1], self._device)
        return Loaded(self._prepare(inputs), targets, samples)


@contextlib.contextmanager
def own_messages() -> Iterator[None]:
    """Raise errors of worker processes with their own message. Theirs is the worker's whole traceback, which ends with
    it."""
    try:
        yield
    except KubetrainError as error:
        raise type(error)(str(error).rpartition(f"{type(error).__name__}: ")[2].strip()) from None


def data_loader(samples: Any, workers: int, **options: Any) -> "DataLoader[Any]":
    multiprocessing.set_forkserver_preload(
        [f"{__package__}.{module}" for module in ("loading_processes", "data", "streams")]
    )
    return DataLoader(
        samples,
        num_workers=workers,
        prefetch_factor=batches_ahead(workers) if workers else None,
        persistent_workers=workers > 0,
        # A process forked from one with threads, such as gloo's, may deadlock.
        multiprocessing_context="forkserver" if workers else None,
        worker_init_fn=exit_with_parent if workers else None,
        **options,
    )


def batches_ahead(workers: int) -> int:
    """Return how many batches each worker prepares: two, or fewer if they would fill the memory that they share."""
    return max(1, min(2, BATCHES_AHEAD // workers))


def exit_with_parent(_: int) -> None:
    """Exit when the training does. Workers are children of the fork server and would outlive a killed training."""
    threading.Thread(target=_exit_after, args=(multiprocessing.parent_process(),), daemon=True).start()


def _exit_after(process: Any) -> None:
    process.join()
    os._exit(0)


class SeededSamples(Dataset[Any]):
    """Samples whose random augmentation is the same in every process and after every resume."""

    def __init__(self, samples: Any, seed: int) -> None:
        self._samples = samples
        self._seed = seed

    def __getitem__(self, key: Key) -> Any:
        epoch, index = key
        left_out: LeftOut | None = getattr(self._samples, "left_out", None)
        while True:
            index = left_out.stand_in(index, len(self._samples)) if left_out else index
            seed_generators(derived_seed(self._seed, epoch, index))
            try:
                return self._samples[index]
            except DamagedImage as damage:
                if left_out is None:
                    raise
                left_out.add(index, damage)


def seed_generators(seed: int, device: torch.device | None = None) -> None:
    """Seed every generator that a model or an augmentation may use.

    torch.manual_seed takes a hundred times as long, which is too long for each sample and step.
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.default_generator.manual_seed(seed)
    if device is not None and device.type == "cuda":
        torch.cuda.manual_seed(seed)


def loader_workers(config: TrainConfig, role: ProcessRole, device: torch.device) -> int:
    """Return the setting, or by default up to 16: one for each CPU of this process except the one it runs on.

    Without a GPU the default is none, because the training uses every CPU and loading is little of its work.
    """
    if config.loader_workers >= 0:
        return config.loader_workers
    if device.type == "cpu":
        return 0
    return min(MAX_WORKERS_PER_PROCESS, cpus_each(role.local_world_size) - 1)
