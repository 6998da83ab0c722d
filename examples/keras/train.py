"""Model.fit on the digits with MultiWorkerMirroredStrategy, in the processes that kubetrain starts.

From this folder:

    kubetrain run train-tensorflow --code . --set train.entry=train.py
"""

import os
from argparse import ArgumentParser
from pathlib import Path

import keras
import tensorflow as tf

from kubetrain_trainer import session
from kubetrain_trainer.callbacks.keras import SessionCallback

DATA = Path(os.environ["KUBETRAIN_DATA"])
GLOBAL_BATCH = 64


def load(split: str) -> tf.data.Dataset:
    """Read images as numbers from 0 to 1. Each process takes its share of the samples of every batch.

    What is left over after the last whole training batch is left out: it might have no sample for some process.
    """
    images = keras.utils.image_dataset_from_directory(
        DATA / split,
        color_mode="grayscale",
        image_size=(8, 8),
        batch_size=None,
        shuffle=split == "train",
        seed=1,
    ).batch(GLOBAL_BATCH, drop_remainder=split == "train")
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = tf.data.experimental.AutoShardPolicy.DATA
    return images.map(lambda image, label: (image / 255, label)).with_options(options)


def build_model() -> keras.Model:
    layers = [
        keras.Input((8, 8, 1)),
        keras.layers.Conv2D(32, 3, activation="relu"),
        keras.layers.BatchNormalization(),
        keras.layers.Flatten(),
        keras.layers.Dense(64, activation="relu"),
        keras.layers.Dense(10),
    ]
    model = keras.Sequential(layers)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(3e-3), loss=loss, metrics=["accuracy"])
    return model


arguments = ArgumentParser()
arguments.add_argument("--epochs", type=int, default=3)

keras.utils.set_random_seed(1)
strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = build_model()
train, val, test = map(load, ("train", "val", "test"))
callback = SessionCallback()
model.fit(
    train,
    epochs=arguments.parse_args().epochs,
    initial_epoch=callback.resume(model),
    validation_data=val,
    callbacks=[callback],
    verbose=0,
)
measured = model.evaluate(test, return_dict=True, verbose=0)
session.finish(lambda folder: model.save(folder / "model.keras"), {"accuracy": measured["accuracy"]})
