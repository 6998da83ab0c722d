"""Tasks that fail as `model_args` says, one for each framework; their models also have statistics and dropout."""

from support.own_tasks import BALLAST

TROUBLE = '''
import contextlib, glob, math, os, sys, time
from kubetrain_trainer.processes.process_role import own_role

RANK = own_role().rank
CALLS = []

class Split:
    """A sample's target is its index, or -1 in splits other than train."""

    def __init__(self, arguments, split):
        self.arguments = arguments
        self.trains = split == "train"

    def __len__(self):
        return 256 if self.trains else 16

def stand_still():
    time.sleep(1000)

def fail_here(arguments, place):
    """Fail here if the arguments say so: in which way, on which rank, after how many calls."""
    if arguments.get("place") != place or RANK != arguments.get("rank", 0):
        return
    CALLS.append(place)
    if len(CALLS) < arguments["after"]:
        return
    if arguments["trouble"] == "sleep":
        time.sleep(arguments["seconds"] if len(CALLS) < arguments.get("until", math.inf) else 0)
    if arguments["trouble"] == "hang":
        stand_still()
    if arguments["trouble"] == "kill":
        os.kill(os.getpid(), 9)
    if arguments["trouble"] == "fill" and not os.path.exists("mended"):
        while not glob.glob("output/checkpoints/step-*"):
            time.sleep(0.01)
        with open("output/filling", "wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(bytes(1000))

def limit_memory(megabytes):
    """Let this process allocate only this much more memory."""
    import resource
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + megabytes * 2**20,) * 2)
'''
PYTORCH = (
    TROUBLE
    + """
import torch
from kubetrain_trainer import Task

class Samples(Split):
    def __getitem__(self, index):
        if self.trains:
            fail_here(self.arguments, "data")
        value = float("nan") if self.trains and index in self.arguments.get("nan", ()) else index / 256
        return torch.linspace(0, value, 1024), torch.tensor(index if self.trains else -1)

def build(config, data_dir):
    arguments = config.model_args
    fail_here(arguments, "build")
    if "leave_out" in arguments:
        trainer = sys.modules["__main__"]
        take_step = trainer.take_step
        trainer.take_step = lambda *given: given[4] != arguments["leave_out"] and take_step(*given)

    def loss(outputs, targets):
        if targets[0] >= 0:
            fail_here(arguments, "loss")
        for _ in range(arguments.get("work", 0)):
            torch.rand(300, 300) @ torch.rand(300, 300)
        if targets[0] >= 0 and arguments.get("allocate"):
            limit_memory(200)
            outputs = outputs * torch.ones(arguments["allocate"], 2**20).mean()
        return (outputs[:, 0] - targets / 256).square()

    layers = [torch.nn.Linear(1024, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1)]
    if arguments.get("units"):
        limit_memory(200)
        layers.append(torch.nn.Linear(1, arguments["units"]))
    if arguments.get("ballast"):
        layers[-1].register_buffer("ballast", torch.rand(arguments["ballast"], 250_000))
    return Task(model=torch.nn.Sequential(*layers), data=lambda split: Samples(arguments, split), loss=loss)
"""
)
TENSORFLOW = (
    TROUBLE
    + BALLAST
    + """
import tensorflow as tf
from kubetrain_trainer import KerasTask

class Samples(Split):
    def load(self, index):
        index = tf.cast(index, tf.int64)
        value = tf.cast(index, tf.float32) / 256
        if self.trains:
            with tf.control_dependencies([tf.numpy_function(lambda: fail_here(self.arguments, "data"), [], [])]):
                value = tf.identity(value)
            bad = tf.constant(self.arguments.get("nan", []), tf.int64)
            value = tf.where(tf.reduce_any(index == bad), float("nan"), value)
        return tf.linspace(0.0, value, 1024), index if self.trains else tf.constant(-1, tf.int64)

def build(config, data_dir):
    arguments = config.model_args
    fail_here(arguments, "build")
    if "leave_out" in arguments:
        trainer = sys.modules["__main__"]
        step_function = trainer.step_function
        def without_one(training):
            take_step = step_function(training)
            return lambda *given: given[3] != arguments["leave_out"] and take_step(*given)
        trainer.step_function = without_one

    def fail_in_loss(targets):
        if targets[0] >= 0:
            fail_here(arguments, "loss")
        if targets[0] >= 0 and arguments.get("allocate"):
            limit_memory(200)

    def loss(outputs, targets):
        with tf.control_dependencies([tf.numpy_function(fail_in_loss, [targets], [])]):
            losses = tf.square(outputs[:, 0] - tf.cast(targets, tf.float32) / 256)
        if arguments.get("allocate"):
            with tf.control_dependencies([losses]):
                losses *= tf.reduce_mean(tf.random.uniform([arguments["allocate"], 2**20]))
        return losses

    layers = [keras.layers.Dense(8), keras.layers.BatchNormalization(), keras.layers.Dropout(0.5)]
    layers.append(keras.layers.Dense(1))
    if arguments.get("units"):
        limit_memory(200)
        layers.append(keras.layers.Dense(arguments["units"]))
    if arguments.get("ballast"):
        layers.append(Ballast(arguments["ballast"]))
    model = keras.Sequential([keras.Input((1024,)), *layers])
    return KerasTask(model=model, data=lambda split: Samples(arguments, split), loss=loss)
"""
)
FAULTY_TASKS = {"pytorch": PYTORCH, "tensorflow": TENSORFLOW}
