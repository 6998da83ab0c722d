"""Two real processes of each trainer: rank 0 decides for both, whatever files the other one sees."""

from pathlib import Path

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.output.training_output import TrainingOutput
from support.process_groups import start, tf_config, torchrun_variables
from support.tiers import ONE_IN_CI

# The first training looks killed after its first checkpoint in rank 0's folder; the other's folder stays empty.
TRAIN_TWICE = """
import os, shutil, sys
from pathlib import Path
from kubetrain_trainer.processes.entry_point import training_arguments

def train_twice(train, rank, after_the_end=(0, 1)):
    output = Path(sys.argv[1], f"seen-by-{rank}")
    sys.argv[1:] = ["--data-dir", ".", "--output-dir", str(output), "--data", "synthetic",
        "--synthetic", '{"samples": 64}', "--batch-size", "8", "--max-steps", "4", "--checkpoint-every", "2"]
    train(training_arguments(""))
    if rank == 0:
        output.joinpath("result.json").unlink()
        shutil.rmtree(output / "checkpoints" / "step-00000004")
    train(training_arguments(""))
    if rank in after_the_end:
        train(training_arguments(""))
    assert output.exists() == (rank == 0)
"""
PYTORCH = (
    TRAIN_TWICE
    + """
import time
import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.reporting.own_time import HostClock, OwnTime
from kubetrain_trainer.processes.process_role import torchrun_role
from kubetrain_trainer.pytorch_ddp.data_parallel import data_parallel
from kubetrain_trainer.pytorch_ddp.group import join_group
from kubetrain_trainer import Task
from kubetrain_trainer.pytorch_ddp.train import train

def bucket_sizes(group, **settings):
    # Returns how many MB of the gradients of a model of 4 MB are all-reduced at once.
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512, bias=False) for _ in range(4)))
    task = Task(model=model, data=None, loss=None)
    parallel = data_parallel(TrainConfig(**settings), task, group, OwnTime(HostClock()))
    sizes = []
    def exchange(state, bucket):
        sizes.append(bucket.buffer().nbytes / 2**20)
        return allreduce_hook(None, bucket)
    parallel.register_comm_hook(None, exchange)
    for _ in range(2):  # the first backward pass tells DDP the order of the gradients
        sizes.clear()
        parallel(torch.ones(1, 512)).sum().backward()
    return sizes

role = torchrun_role()
rank = role.rank
with join_group(TrainConfig(nccl_timeout_seconds=1), role) as group:
    assert group.from_rank_0(lambda: f"of {rank}") == "of 0"
    group.from_rank_0(lambda: time.sleep(2.2))  # the first step may take three times as long
    group.from_rank_0(lambda: time.sleep(4.5), takes_long=True)  # rank 0 saves before all stop
    model = torch.nn.BatchNorm1d(2)
    model.running_mean += rank + 1
    group.broadcast_statistics(model)
    assert model.running_mean.tolist() == [1, 1]
    model.view = torch.nn.Buffer((torch.arange(12.0) + rank)[::2])  # with gaps in memory
    group.broadcast_statistics(model)
    assert model.view.tolist() == [0, 2, 4, 6, 8, 10]
    assert bucket_sizes(group, allreduce_bucket_mb=2) == [2, 2]
    assert max(bucket_sizes(group)) == 3, "PyTorch's own choice is a first bucket of 1 MB, and later ones of up to 25"
    time.sleep(1.5 if rank == 0 else 0)  # rank 0 exports
ports = iter(os.environ["PORTS"].split())
def train_in_a_new_group(arguments):
    os.environ["MASTER_PORT"] = next(ports)  # the former rank 0 may still use the first one
    train(arguments)
train_twice(train_in_a_new_group, rank)
"""
)
TENSORFLOW = (
    TRAIN_TWICE
    + """
from types import SimpleNamespace
import keras
import tensorflow as tf
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.processes.process_role import tensorflow_role
from kubetrain_trainer.tensorflow_multiworker.group import join_group, vary_dropout
from kubetrain_trainer.tensorflow_multiworker.step import all_reduce
from kubetrain_trainer.tensorflow_multiworker.train import train

def bucket_sizes(group):
    # Returns how many MB of four gradients of 1 MB each are all-reduced at once.
    training, gradients = SimpleNamespace(group=group), [tf.ones((512, 512))] * 4
    step = tf.function(lambda: group.strategy.run(lambda: all_reduce(training, gradients)))
    operations = step.get_concrete_function().graph.get_operations()
    sums = [each for each in operations if each.type.startswith("CollectiveReduce")]
    return [each.inputs[0].shape.num_elements() * 4 / 2**20 for each in sums]

role = tensorflow_role()
with join_group(TrainConfig(), role) as group:
    assert group.from_rank_0(lambda: f"of {role.rank}") == "of 0"
    with group.strategy.scope():
        frozen = keras.layers.Dense(64, "relu", trainable=False)
        model = keras.Sequential([keras.Input((64,)), keras.layers.BatchNormalization(momentum=0), frozen])
        dropout = keras.Sequential([keras.Input((64,)), keras.layers.Dropout(0.5, seed=1)])
    group.strategy.run(lambda: model(tf.fill((2, 64), role.rank + 1.0), training=True))
    frozen.bias.assign([role.rank] * 64)
    group.broadcast_statistics(model)
    assert frozen.bias.numpy().tolist() == [role.rank] * 64, "weights that no step changes are not sent"
    assert model.layers[0].moving_mean.numpy().tolist() == [1] * 64
    assert model.layers[0].moving_variance.numpy().tolist() == [0] * 64
    vary_dropout(dropout, group.strategy)
    kept = group.strategy.run(lambda: dropout(tf.ones((1, 64)), training=True)).numpy() > 0
    in_both = group.sum_array(kept.astype(float))
    assert set(in_both.ravel()) == {0, 1, 2}, "each process drops other units"
    assert bucket_sizes(group) == [4]
with join_group(TrainConfig(allreduce_bucket_mb=1), role) as group:
    assert bucket_sizes(group) == [2, 2], "TensorFlow adds gradients until they are more than the setting"
train_twice(train, role.rank, after_the_end=[0])  # rank 0 waits for nobody then
threads = len(os.listdir("/proc/self/task"))
assert threads < 200, f"{threads} threads: collectives leave some behind"
"""
)


@pytest.mark.slow
@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_all_processes_follow_rank_0_even_if_they_see_other_files(framework: str, tmp_path: Path) -> None:
    ports = free_ports(4)
    if framework == "pytorch":
        processes = [start(PYTORCH, tmp_path, **torchrun_variables(ports, rank)) for rank in range(2)]
    else:
        processes = [start(TENSORFLOW, tmp_path, TF_CONFIG=tf_config(ports[:2], index)) for index in range(2)]
    texts = [process.communicate(timeout=90)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(texts)
    result = TrainingOutput(tmp_path / "seen-by-0").read_result()
    assert result is not None
    assert result["step"] == 4
    assert result["network"].startswith({"pytorch": "gloo over ", "tensorflow": "ring"}[framework])
