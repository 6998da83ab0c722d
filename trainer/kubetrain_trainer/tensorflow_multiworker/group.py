"""The processes that train together: the devices of each, and what they tell one another."""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.cpus import cpu_name, threads_of
from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.process_role import ProcessRole, check_gpus
from kubetrain_trainer.start_banner import describe_start
from kubetrain_trainer.stop_signal import end_when_asked

Decision = TypeVar("Decision")
DECISION_BYTES = 16384
"""So many hold the longest path."""


@contextlib.contextmanager
def process_group(config: TrainConfig, role: ProcessRole) -> Iterator[tf.distribute.Strategy]:
    """The strategy of this process, in a group with all others; all leave it together when all went well, or stop."""
    check_gpus(config, role, len(tf.config.list_physical_devices("GPU")))
    prepare_devices(role)
    strategy = build_strategy(config, role)
    end_when_asked()  # again: a strategy of several processes takes the signal, and does nothing with it
    try:
        yield strategy
    except Stopped:
        sum_over_processes(np.zeros(1), role, strategy)
        raise
    sum_over_processes(np.zeros(1), role, strategy)


def prepare_devices(role: ProcessRole) -> None:
    """Compute on this process's share of the CPUs, and take of a GPU's memory only what is needed."""
    tf.config.threading.set_intra_op_parallelism_threads(threads_of(role))
    for device in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(device, True)


def build_strategy(config: TrainConfig, role: ProcessRole) -> tf.distribute.Strategy:
    if role.world_size == 1:
        return tf.distribute.MirroredStrategy()
    implementations = tf.distribute.experimental.CommunicationImplementation
    # No timeout: with one, each collective leaves threads behind that sleep until it is over, thousands a minute.
    # A lost process is noticed within seconds all the same, by its heartbeat.
    options = tf.distribute.experimental.CommunicationOptions(
        implementation={
            "auto": implementations.AUTO,
            "nccl": implementations.NCCL,
            "gloo": implementations.RING,
        }[config.communication],
    )
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)


def describe_group(role: ProcessRole, config: TrainConfig, precision: str) -> str:
    gpus = tf.config.list_physical_devices("GPU")
    automatic = "nccl" if gpus else "ring"
    names = [tf.config.experimental.get_device_details(gpu).get("device_name", "GPU") for gpu in gpus]
    return describe_start(
        backend=f"TensorFlow {tf.__version__}",
        world_size=role.world_size,
        transport={"auto": automatic, "nccl": "nccl", "gloo": "ring"}[config.communication] * (role.world_size > 1),
        precision=precision,
        threads=tf.config.threading.get_intra_op_parallelism_threads(),
        device=" and ".join(names) or cpu_name(),
    )


def gpu_memory_peak() -> int:
    """The most bytes that this process took of one of its GPUs' memory; 0 without a GPU."""
    gpus = range(len(tf.config.list_physical_devices("GPU")))
    return max((tf.config.experimental.get_memory_info(f"GPU:{index}")["peak"] for index in gpus), default=0)


def from_chief(decide: Callable[[], Decision], role: ProcessRole, strategy: tf.distribute.Strategy) -> Decision:
    """What the chief decides, in every process: each by itself could see shared storage at another moment.

    TensorFlow has no broadcast of objects: the decision goes as a sum of JSON's bytes, the others adding zeros.
    """
    message = np.zeros(DECISION_BYTES)
    if role.is_chief:
        text = json.dumps(decide()).encode()
        message[: len(text)] = list(text)
    received = sum_over_processes(message, role, strategy).astype(np.uint8).tobytes()
    decision: Decision = json.loads(received.rstrip(b"\0"))
    return decision


def read_numbers(numbers: Sequence[tf.Tensor]) -> list[float]:
    """Bring them from the device, one by one: to join them first takes longer."""
    return [float(number) for number in numbers]


def sum_over_processes(values: np.ndarray, role: ProcessRole, strategy: tf.distribute.Strategy) -> np.ndarray:
    local_replicas = strategy.num_replicas_in_sync // role.world_size

    def contribution() -> tf.Tensor:
        # Every replica of a process brings the same values: one of them counts.
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        return tf.where(replica % local_replicas == 0, values, tf.zeros_like(values))

    return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(contribution), axis=None).numpy()


def share_statistics(model: keras.Model, role: ProcessRole, strategy: tf.distribute.Strategy) -> None:
    """Give every replica the chief's running statistics: they are what is evaluated, and what is saved."""
    statistics = model.non_trainable_weights
    if strategy.num_replicas_in_sync == 1 or not statistics:
        return
    joined = np.concatenate([variable.numpy().ravel() for variable in statistics])
    chiefs = sum_over_processes(joined if role.is_chief else np.zeros_like(joined), role, strategy)
    ends = np.cumsum([variable.shape.num_elements() for variable in statistics])
    for variable, values in zip(statistics, np.split(chiefs, ends[:-1]), strict=True):
        variable.assign(values.reshape(variable.shape))


def vary_dropout(model: keras.Model, strategy: tf.distribute.Strategy) -> None:
    """Let each replica draw its own dropout. The first keeps the seeds that checkpoints save: those of a resumed run
    vary in the same way."""
    seeds = [variable for variable in model.variables if variable.name == "seed_generator_state"]

    def vary_seeds() -> None:
        replica = tf.distribute.get_replica_context().replica_id_in_sync_group
        for seed in seeds:
            seed.assign(seed.value + tf.stack([tf.cast(replica, seed.dtype), 0]))

    strategy.run(vary_seeds)
