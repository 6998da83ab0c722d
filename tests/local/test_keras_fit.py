"""Keras' own fit() and evaluate() in two processes, as a script of your own calls them."""

from pathlib import Path

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from support.process_groups import start, tf_config

SCRIPT = """
from kubetrain_trainer.tensorflow_multiworker.own_code import repair_when_imported

repair_when_imported()
import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, kernel_initializer="zeros")])
    model.compile(keras.optimizers.SGD(0.0), "mse", metrics=["mae"])
targets = tf.repeat([[1.0], [3.0]], 8, axis=0)
batches = tf.data.Dataset.from_tensor_slices((tf.ones((16, 1)), targets)).batch(4)
measured = {"loss": 5.0, "mae": 2.0}
seen = []
note = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append(dict(logs)))
fitted = model.fit(batches, verbose=0, callbacks=[note]).history
assert fitted == {name: [value] for name, value in measured.items()}, fitted
assert seen[-1] == measured, seen
assert model.evaluate(batches, return_dict=True, verbose=0) == measured
"""


@pytest.mark.slow
def test_figures_are_the_means_over_the_samples_of_both_processes(tmp_path: Path) -> None:
    ports = free_ports(2)
    processes = [start(SCRIPT, tmp_path, TF_CONFIG=tf_config(ports, index)) for index in range(2)]
    texts = [process.communicate(timeout=90)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], "\n".join(texts)
