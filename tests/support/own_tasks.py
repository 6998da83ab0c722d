"""Custom tasks, one for each framework, with a state of a given size and a record of the samples used."""

RECORD = '''
import os, signal, time
from pathlib import Path

class Split:
    """A sample's target is its index, or -1 in splits other than train."""

    def __init__(self, split):
        self.trains = split == "train"

    def __len__(self):
        return 2048 if self.trains else 16

def record(targets):
    if targets[0] < 0:
        return
    with open(f"taken-by-{os.getpid()}", "a") as file:
        file.write(" ".join(map(str, targets)) + "\\n")
    if Path("kill-after-a-checkpoint").exists():
        time.sleep(0.01)
        if any(Path("output/checkpoints").glob("step-*")):
            os.kill(os.getpid(), signal.SIGKILL)
'''
PYTORCH = (
    RECORD
    + """
import torch
from kubetrain_trainer import Task

class Samples(Split):
    def __getitem__(self, index):
        return torch.full((4,), index / 2048), torch.tensor(index if self.trains else -1)

def loss(outputs, targets):
    record(targets.tolist())
    return (outputs[:, 0] - targets / 2048).square()

def build(config, data_dir):
    model = torch.nn.Linear(4, 1)
    model.register_buffer("ballast", torch.rand(config.model_args["megabytes"], 250_000))
    return Task(model=model, data=Samples, loss=loss)
"""
)
BALLAST = """
import keras

class Ballast(keras.layers.Layer):
    def __init__(self, megabytes):
        super().__init__()
        self.values = self.add_weight(shape=(megabytes, 250_000), initializer="uniform", trainable=False)

    def call(self, inputs):
        return inputs
"""
TENSORFLOW = (
    RECORD
    + BALLAST
    + """
import tensorflow as tf
from kubetrain_trainer import KerasTask

class Samples(Split):
    def load(self, index):
        index = tf.cast(index, tf.int64)
        return tf.fill([4], tf.cast(index, tf.float32) / 2048), index if self.trains else tf.constant(-1, tf.int64)

def loss(outputs, targets):
    with tf.control_dependencies([tf.numpy_function(record, [targets], [])]):
        return tf.square(outputs[:, 0] - tf.cast(targets, tf.float32) / 2048)

def build(config, data_dir):
    layers = [keras.Input((4,)), Ballast(config.model_args["megabytes"]), keras.layers.Dense(1)]
    return KerasTask(model=keras.Sequential(layers), data=Samples, loss=loss)
"""
)
TASKS = {"pytorch": PYTORCH, "tensorflow": TENSORFLOW}
