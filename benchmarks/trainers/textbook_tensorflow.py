"""The MultiWorkerMirroredStrategy script of TensorFlow's guide: the reference for speed.

TF_CONFIG=... python textbook_tensorflow.py MODEL PIXELS BATCH STEPS SOURCE
"""

import sys
import time

import keras
import numpy as np
import tensorflow as tf

name, pixels, batch, steps, source = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]), sys.argv[5]
UNTIMED_STEPS = 2
CLASSES = 1000
MODELS = {"resnet50": keras.applications.ResNet50, "mobilenetv2": keras.applications.MobileNetV2}


def dataset(global_batch: int) -> tf.data.Dataset:
    size = global_batch * (steps + UNTIMED_STEPS)
    if source != "resident":
        folder = keras.utils.image_dataset_from_directory(source, image_size=(pixels, pixels), batch_size=None)
        prepared = folder.map(lambda image, label: (keras.applications.resnet50.preprocess_input(image), label))
        return prepared.batch(global_batch, drop_remainder=True)
    images = np.random.default_rng(0).normal(size=(size, pixels, pixels, 3)).astype(np.float32)
    labels = np.arange(size) % CLASSES
    return tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(size).batch(global_batch)


def main() -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    global_batch = batch * strategy.num_replicas_in_sync
    distributed = strategy.experimental_distribute_dataset(dataset(global_batch))
    with strategy.scope():
        model = MODELS[name](weights=None, classes=CLASSES, input_shape=(pixels, pixels, 3), classifier_activation=None)
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        loss_of = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="none")

    def replica_step(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        images, labels = inputs
        with tf.GradientTape() as tape:
            losses = loss_of(labels, model(images, training=True))
            loss = tf.nn.compute_average_loss(losses, global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def train_step(inputs: tuple[tf.Tensor, tf.Tensor]) -> tf.Tensor:
        losses = strategy.run(replica_step, args=(inputs,))
        return strategy.reduce(tf.distribute.ReduceOp.SUM, losses, axis=None)

    started = 0.0
    for done, inputs in enumerate(distributed):
        if done == UNTIMED_STEPS:
            started = time.perf_counter()
        float(train_step(inputs))
    rate = global_batch * steps / (time.perf_counter() - started)
    print(f"images_per_second={rate}", flush=True)


if __name__ == "__main__":
    main()
