"""Train a CNN on random images with Model.fit, by MultiWorkerMirroredStrategy and TF_CONFIG."""

import argparse
import json
import os

import numpy as np
import tensorflow as tf


def dataset_fn(batch_size):
    generator = np.random.default_rng(1)
    images = generator.random((512, 28, 28, 1), dtype=np.float32)
    labels = generator.integers(10, size=512)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(512, seed=1).repeat().batch(batch_size)
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return dataset.with_options(options)


def build_and_compile_cnn_model(learning_rate):
    model = tf.keras.Sequential(
        [
            tf.keras.layers.Input(shape=(28, 28, 1)),
            tf.keras.layers.Conv2D(8, 3, activation="relu"),
            tf.keras.layers.BatchNormalization(),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dense(32, activation="relu"),
            tf.keras.layers.Dense(10),
        ]
    )
    model.compile(
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        optimizer=tf.keras.optimizers.SGD(learning_rate=learning_rate),
        metrics=["accuracy"],
    )
    return model


def is_chief(task):
    return task["type"] == "chief" or (task["type"] == "worker" and task["index"] == 0 and "chief" not in CLUSTER)


def write_filepath(directory, name, task):
    """The chief's file; the others save to folders of their own, because all of them must call save()."""
    if not is_chief(task):
        directory = os.path.join(directory, f"workertemp_{task['index']}")
    os.makedirs(directory, exist_ok=True)
    return os.path.join(directory, name)


parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=2)
parser.add_argument("--steps-per-epoch", type=int, default=5)
parser.add_argument("--batch-size-per-replica", type=int, default=16)
parser.add_argument("--learning-rate", type=float, default=0.001)
parser.add_argument("--model-dir", default="/output")
args = parser.parse_args()

tf_config = json.loads(os.environ["TF_CONFIG"])
CLUSTER = tf_config["cluster"]
num_workers = sum(len(hosts) for hosts in CLUSTER.values())

strategy = tf.distribute.MultiWorkerMirroredStrategy()
print(f"Number of devices: {strategy.num_replicas_in_sync}, workers: {num_workers}")
global_batch_size = args.batch_size_per_replica * strategy.num_replicas_in_sync
multi_worker_dataset = dataset_fn(global_batch_size)

with strategy.scope():
    multi_worker_model = build_and_compile_cnn_model(args.learning_rate)

multi_worker_model.fit(multi_worker_dataset, epochs=args.epochs, steps_per_epoch=args.steps_per_epoch, verbose=2)

path = write_filepath(args.model_dir, "cnn.keras", tf_config["task"])
multi_worker_model.save(path)
if not is_chief(tf_config["task"]):
    os.remove(path)
    os.rmdir(os.path.dirname(path))
