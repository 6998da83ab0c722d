"""TensorFlow's loader begins the next epoch before this one ends, and keeps the order of batches and of errors."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.slow

PROGRAM = """
import gc
import resource
import time

import keras
import tensorflow as tf

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.data.left_out import DamagedImage, LeftOut
from kubetrain_trainer.tensorflow_multiworker.loading import DatasetReader, keep_memory, load

SAMPLES, DAMAGED = 40, 13


class Noted:
    def __init__(self, damaged=None):
        self.loads, self.damaged, self.left_out = [], damaged, LeftOut(most=1)

    def __len__(self):
        return SAMPLES

    def load(self, index):
        if tf.executing_eagerly() and int(index) == self.damaged:
            raise DamagedImage("one is damaged")
        return tf.py_function(self.note, [index], tf.int64), index

    def note(self, index):
        self.loads.append(int(index))
        if int(index) == self.damaged:
            raise ValueError("cannot be read")
        return index


def epochs(count, size=4):
    for epoch in range(count):
        firsts = range(0, SAMPLES, size)
        yield from ([(epoch, index) for index in range(SAMPLES)[first : first + size]] for first in firsts)
    raise KubetrainError("there is no other epoch")


def indices_of(loaded):
    found = []
    try:
        for _, indices in loaded:
            found += indices.numpy().tolist()
    except KubetrainError as error:
        assert str(error) == "there is no other epoch", error
        return found
    raise AssertionError("the error was lost")


keep_memory()
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
indices_of(load(Noted(), epochs(2)))
for _ in range(20):
    bytearray(100_000_000)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
assert faults < 4 * 25_000, faults  # each array has 24,414 pages

for size in (4, 6):  # which leaves a smaller batch
    noted, steps = Noted(), -(-SAMPLES // size)
    loaded = load(noted, epochs(2, size))
    seen = [index for _ in range(steps - 2) for index in next(loaded)[1].numpy().tolist()]
    time.sleep(0.5)  # for the threads to take the keys that are left, and to begin what is due
    seen += next(loaded)[1].numpy().tolist()
    deadline = time.monotonic() + 20
    while len(noted.loads) <= SAMPLES and time.monotonic() < deadline:
        time.sleep(0.01)
    assert len(noted.loads) > SAMPLES, "nothing of the second epoch was loaded"
    seen += indices_of(loaded)
    assert seen == [*range(SAMPLES)] * 2, seen

keras.config.set_dtype_policy("mixed_bfloat16")
policies = []
noting = lambda samples, size: policies.append(keras.config.dtype_policy().name) or samples.batch(size)
indices_of(load(Noted(), epochs(2), noting))
assert policies == ["mixed_bfloat16"] * 2, policies

gc.disable()
loaded = load(Noted(), epochs(2))
next(loaded)
assert any(isinstance(each, DatasetReader) for each in gc.get_objects())
loaded.close()
left = [each for each in gc.get_objects() if isinstance(each, DatasetReader)]
assert not left, "an iterator is left, and the process may not end"
gc.enable()

for count in (1, 2):
    seen = indices_of(load(Noted(DAMAGED), epochs(count)))
    assert seen == [index + (index == DAMAGED) for index in range(SAMPLES)] * count, seen
"""


def test_the_next_epoch_begins_before_this_one_ends() -> None:
    """Run in a separate process: torch crashes if it is imported after TensorFlow."""
    finished = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert finished.stdout.count("left out, 1 of 1") == 2
