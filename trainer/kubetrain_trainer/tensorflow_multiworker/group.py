"""The group of processes that train together, their devices, and their collectives."""

import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.failures import annotating_errors
from kubetrain_trainer.processes.process_group import Decision, ProcessGroup, describe_start, with_interface
from kubetrain_trainer.processes.process_role import ProcessRole, check_gpus
from kubetrain_trainer.processes.resources import cpu_name, threads_of
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.stop_signal import exit_on_sigterm
from kubetrain_trainer.tensorflow_multiworker.layers import without_frozen
from kubetrain_trainer.tensorflow_multiworker.precision import describe_precision

DEFAULT_BUCKET_MB = 25
DECISION_BYTES = 16384
"""Enough for the longest path."""


@dataclass
class Group(ProcessGroup):
    role: ProcessRole
    strategy: tf.distribute.Strategy

    @property
    def replicas(self) -> int:
        """The number of copies of the model: one for each GPU, or for each process without GPUs."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def local_replicas(self) -> int:
        return self.replicas // self.role.world_size

    @functools.cached_property
    def has_gpus(self) -> bool:
        return bool(tf.config.list_physical_devices("GPU"))

    def find_network(self) -> str:
        """Return the algorithm by which TensorFlow connects the processes, and its interface if a variable names it."""
        return with_interface("nccl" if self.has_gpus else "ring") if self.role.world_size > 1 else ""

    def describe(self, config: TrainConfig) -> str:
        gpus = tf.config.list_physical_devices("GPU")
        return describe_start(
            backend=f"TensorFlow {tf.__version__}",
            world_size=self.role.world_size,
            network=self.network,
            precision=describe_precision(config),
            threads=tf.config.threading.get_intra_op_parallelism_threads(),
            device=" and ".join(sorted({*gpu_names()})) or cpu_name(),
            used_gpus=self.local_replicas,
            gpus=len(gpus),
        )

    def from_rank_0(self, decide: Callable[[], Decision], *, takes_long: bool = False) -> Decision:
        """Sum rank 0's JSON bytes and the other processes' zeros, because TensorFlow cannot broadcast objects."""
        message = np.zeros(DECISION_BYTES)
        if self.role.is_rank_0:
            text = json.dumps(decide()).encode()
            message[: len(text)] = list(text)
        received = self.sum_array(message).astype(np.uint8).tobytes()
        decision: Decision = json.loads(received.rstrip(b"\0"))
        return decision

    def sum(self, values: list[float]) -> list[float]:
        sums: list[float] = self.sum_array(np.array(values)).tolist()
        return sums

    def sum_array(self, values: Any) -> np.ndarray:
        local_replicas = self.local_replicas

        def contribution() -> tf.Tensor:
            # All replicas of a process have the same values: count them once.
            replica = tf.distribute.get_replica_context().replica_id_in_sync_group
            return tf.where(replica % local_replicas == 0, values, tf.zeros_like(values))

        return self.strategy.reduce(tf.distribute.ReduceOp.SUM, self.strategy.run(contribution), axis=None).numpy()

    @property
    def local_replica(self) -> int:
        """The number of the replica of this process that asks, outside a graph."""
        return int(tf.distribute.get_replica_context().replica_id_in_sync_group) % self.local_replicas

    def distributed_value(self, values: Sequence[Any]) -> Any:
        """Return a value of the strategy with one of these values for each replica of this process."""
        if self.local_replicas == 1:
            return values[0]
        return self.strategy.experimental_distribute_values_from_function(
            lambda context: values[context.replica_id_in_sync_group % self.local_replicas]
        )

    def local_values(self, value: Any) -> list[Any]:
        """Return what a value of the strategy holds, of any structure: one value for each replica of this process."""
        local = [self.strategy.experimental_local_results(distributed) for distributed in tf.nest.flatten(value)]
        return [tf.nest.pack_sequence_as(value, values) for values in zip(*local, strict=True)]

    def broadcast_statistics(self, model: keras.Model) -> None:
        statistics = without_frozen(model.non_trainable_weights, model)
        if self.replicas == 1 or not statistics:
            return
        joined = np.concatenate([variable.numpy().ravel() for variable in statistics])
        broadcast = self.sum_array(joined if self.role.is_rank_0 else np.zeros_like(joined))
        ends = np.cumsum([variable.shape.num_elements() for variable in statistics])
        for variable, values in zip(statistics, np.split(broadcast, ends[:-1]), strict=True):
            variable.assign(values.reshape(variable.shape))

    def read_numbers(self, numbers: Sequence[tf.Tensor]) -> list[float]:
        return [float(number) for number in numbers]  # joining them first takes longer

    def gpu_memory_peak(self) -> int:
        gpus = range(len(tf.config.list_physical_devices("GPU")))
        return max((tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in gpus), default=0)


@contextlib.contextmanager
def join_group(config: TrainConfig, role: ProcessRole) -> Iterator[Group]:
    """Join the other processes. After success or a stop, wait for them before leaving."""
    check_gpus(role, len(tf.config.list_physical_devices("GPU")))
    prepare_devices(config, role)
    group = Group(role, build_strategy(config, role))
    group.network = group.find_network()
    exit_on_sigterm()  # again, because a strategy of several processes replaces the handler with one that does nothing
    try:
        yield group
    except Stopped:
        leave(group)
        raise
    leave(group)


def leave(group: Group) -> None:
    with annotating_errors(lambda: "at the end"):
        group.sum([0.0])


def gpu_names() -> list[str]:
    details = map(tf.config.experimental.get_device_details, tf.config.list_physical_devices("GPU"))
    return [gpu.get("device_name", "GPU") for gpu in details]


def prepare_devices(config: TrainConfig, role: ProcessRole) -> None:
    """Limit the threads to the CPUs of this process, and allocate GPU memory only when needed."""
    tf.config.threading.set_intra_op_parallelism_threads(threads_of(role))
    tf.config.experimental.enable_tensor_float_32_execution(config.precision != "fp32")
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)


def build_strategy(config: TrainConfig, role: ProcessRole) -> tf.distribute.Strategy:
    if role.world_size == 1:
        return tf.distribute.MirroredStrategy()
    # No timeout: with one, each collective leaves behind threads that sleep until it expires, thousands per minute.
    # A lost process is still detected within seconds, by its missing heartbeat.
    options = tf.distribute.experimental.CommunicationOptions(
        # By default, the all-reduce waits for the last gradient.
        bytes_per_pack=(config.allreduce_bucket_mb or DEFAULT_BUCKET_MB) * 2**20,
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def vary_dropout(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Give each replica its own dropout seeds.

    The first replica keeps the seeds that checkpoints save, so that a resumed run derives the same seeds from them.
    """
    seeds = [variable for variable in model.variables if variable.name == "seed_generator_state"]

    def vary_seeds() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for seed in seeds:
            seed.assign(seed.value + tf.stack([tf.cast(replica, seed.dtype), 0]))

    strategy.run(vary_seeds)
