"""One optimizer step in all processes: compute, all-reduce and clip the gradients, then apply them."""

from collections.abc import Callable
from functools import partial
from typing import Any

import tensorflow as tf

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.measures import check_sample_values
from kubetrain_trainer.tensorflow_multiworker.layers import layer_rates, without_frozen
from kubetrain_trainer.tensorflow_multiworker.loading import preparation, split
from kubetrain_trainer.tensorflow_multiworker.optimizer import is_decayed
from kubetrain_trainer.tensorflow_multiworker.precision import forward
from kubetrain_trainer.tensorflow_multiworker.training import Training


def step_function(training: Training) -> Callable[..., bool]:
    """Return a function that takes a step and returns False if it was skipped.

    If steps may be skipped, the host chooses between two graphs, because a condition cannot contain an update.
    """
    skips, run_replicas = training.config.skips_steps, training.group.strategy.run
    model = training.task.model
    variables, statistics = model.trainable_variables, without_frozen(model.non_trainable_variables, model)
    gradients_of = partial(accumulate_gradients, training)
    if training.config.is_compiled:  # excludes the all-reduce between processes, which XLA cannot compile
        gradients_of = tf.function(gradients_of, jit_compile=True)

    def take_step(inputs: Any, targets: Any, global_size: int, step: int, rate: float, micro_batches: int) -> bool:
        size, scale = tf.constant(float(global_size)), tf.constant(training.recent.loss_scale.factor)
        arguments = (training.stop.request, inputs, targets, size, scale, micro_batches)
        loss, norm, stops, wait, before, gradients = compute(tf.constant(rate), *arguments)
        training.stop.note(stops)
        if not training.group.has_gpus:  # else the host would wait for them
            training.own_time.note_wait(0.0, float(wait))
        is_taken = training.recent.accept_step(step, rate, loss, norm)
        if not is_taken:
            restore(before)
        elif skips:
            update(gradients)
        return is_taken

    @tf.function(reduce_retracing=True)
    def compute(rate: tf.Tensor, *arguments: Any) -> tuple[Any, ...]:
        training.optimizer.learning_rate.assign(rate)
        losses, stop_requests, before, waits, norms, gradients = run_replicas(compute_local, args=arguments)
        if not skips:
            run_replicas(update_local, args=(gradients,))
            gradients = []
        loss = tf.add_n(training.group.strategy.experimental_local_results(losses)) * training.group.role.world_size
        (norm, *_), (wait, *_) = map(training.group.strategy.experimental_local_results, (norms, waits))
        stops = training.group.strategy.reduce(tf.distribute.ReduceOp.SUM, stop_requests, axis=None)
        return loss, norm, stops, wait, before, gradients

    def compute_local(stop_request: tf.Tensor, *arguments: Any) -> tuple[Any, ...]:
        before = [tf.identity(variable.value) for variable in statistics] if skips else []
        loss, gradients = gradients_of(*arguments)
        wait, summed = all_reduce(training, gradients)
        return loss, tf.identity(stop_request), before, wait, *clip_and_decay(training, summed, variables)

    def update_local(gradients: list[Any]) -> None:
        with layer_rates(model, training.config.layer_rate):
            training.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def restore_local(before: list[tf.Tensor]) -> None:
        for variable, value in zip(statistics, before, strict=True):
            variable.value.assign(value)

    update = tf.function(lambda gradients: run_replicas(update_local, args=(gradients,)))
    restore = tf.function(lambda before: run_replicas(restore_local, args=(before,)))
    return take_step


def accumulate_gradients(
    training: Training, inputs: Any, targets: Any, global_size: tf.Tensor, scale: tf.Tensor, micro_batches: int
) -> tuple[tf.Tensor, list[Any]]:
    """Return this replica's terms of the loss and of its gradients, added up over the micro-batches of its batch."""
    first, *others = split([inputs, targets], micro_batches)
    compute = partial(forward_backward, training, global_size, scale, training.group.replicas * micro_batches)
    loss, gradients = compute(*first)
    for micro_batch in others:
        # In sequence, because in parallel they would need as much memory as the whole batch.
        with tf.control_dependencies([gradient for gradient in gradients if gradient is not None]):
            next_loss, next_gradients = compute(*micro_batch)
        loss += next_loss
        pairs = zip(gradients, next_gradients, strict=True)
        gradients = [one if one is None else tf.add_n([one, other]) for one, other in pairs]
    if training.recent.loss_scale.is_used:
        gradients = [one if one is None else one / scale for one in gradients]
    return loss, gradients


def forward_backward(
    training: Training, global_size: tf.Tensor, scale: tf.Tensor, micro_batches: int, inputs: Any, targets: Any
) -> tuple[tf.Tensor, list[Any]]:
    """
    Args:
        micro_batches: Their number in all replicas. Each adds the same fraction of the losses that do not depend on
            samples, such as those of regularizers.

    Raises:
        KubetrainError: if nothing can be learnt from the loss.
    """
    model, task = training.task.model, training.task
    inputs = preparation(training.samples)(inputs)
    with tf.GradientTape() as tape:
        losses = (task.training_loss or task.loss)(forward(model, inputs, training=True), targets)
        check_while_traced(losses, targets)
        loss = tf.reduce_sum(losses) / global_size
        for added in model.losses:
            loss += tf.cast(added, loss.dtype) / micro_batches
        scaled = loss * scale
    gradients = tape.gradient(scaled, model.trainable_variables)
    if all(gradient is None for gradient in gradients):
        raise KubetrainError(
            "the loss does not depend on the model's weights: compute it from the outputs by TensorFlow's operations, "
            "because NumPy's have no gradients"
        )
    return loss, gradients


def check_while_traced(losses: tf.Tensor, targets: Any) -> None:
    """Check the loss while a graph is built: that of the first step has the shapes of its batch.

    What a graph cannot know, such as the shape of a Python function's result, is checked by the first validation.
    """
    tensors = [tensor for tensor in tf.nest.flatten(targets) if tensor.shape.rank != 0]
    samples = tensors[0].shape[0] if tensors else None
    if samples is not None and losses.shape.is_fully_defined():
        check_sample_values("training loss", losses, samples)


def all_reduce(training: Training, gradients: list[Any]) -> tuple[tf.Tensor, list[Any]]:
    """Sum the gradients of all replicas. Also return the seconds that this takes after all of them are computed."""
    present = [gradient for gradient in gradients if gradient is not None]
    began = timestamp_after(training, present)
    sums = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, present)
    wait, summed = timestamp_after(training, sums) - began, iter(sums)
    return wait, [None if gradient is None else next(summed) for gradient in gradients]


def timestamp_after(training: Training, tensors: list[Any]) -> tf.Tensor:
    """Return the time when these tensors are computed; 0 with GPUs, which compute later than the host."""
    if training.group.has_gpus:
        return tf.zeros((), tf.float64)
    with tf.control_dependencies(tensors):
        return tf.timestamp()


def clip_and_decay(training: Training, gradients: list[Any], variables: list[Any]) -> tuple[tf.Tensor, list[Any]]:
    """Clip the sum of all replicas and add SGD's weight decay. Also return the norm before clipping.

    This function replaces Keras' clipping, which clips each replica's gradient before the sum, and its weight decay,
    which bypasses the momentum.
    """
    config = training.config
    norm = tf.linalg.global_norm(gradients)  # without clipping too: a gradient that is NaN shows only there
    if config.clip_norm:
        gradients, _ = tf.clip_by_global_norm(gradients, config.clip_norm, use_norm=norm)
    decay = config.weight_decay if config.optimizer == "sgd" and not training.task.optimizer else 0.0
    return norm, [
        gradient + decay * variable if gradient is not None and is_decayed(config, variable) else gradient
        for gradient, variable in zip(gradients, variables, strict=True)
    ]
