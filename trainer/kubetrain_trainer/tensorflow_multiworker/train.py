"""Train with MultiWorkerMirroredStrategy.

TF_CONFIG='{…}' python -m kubetrain_trainer.tensorflow_multiworker.train --data-dir DATA --output-dir OUTPUT
"""

import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer.allocator import keep_freed_memory
from kubetrain_trainer.checkpoint_layout import Progress, choose_checkpoint, open_checkpoint, remove_partial
from kubetrain_trainer.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.entry_point import Arguments, run, training_arguments
from kubetrain_trainer.failures import telling
from kubetrain_trainer.process_role import ProcessRole, tensorflow_role
from kubetrain_trainer.recent_steps import RecentSteps
from kubetrain_trainer.sampling import Batch, SamplePlan
from kubetrain_trainer.schedule import learning_rate
from kubetrain_trainer.tensorflow_multiworker.averaging import Averages
from kubetrain_trainer.tensorflow_multiworker.checkpoint import export, restore, save
from kubetrain_trainer.tensorflow_multiworker.data import load, split
from kubetrain_trainer.tensorflow_multiworker.evaluate import mean_metrics
from kubetrain_trainer.tensorflow_multiworker.group import (
    describe_group,
    from_chief,
    gpu_memory_peak,
    process_group,
    read_numbers,
    share_statistics,
    sum_over_processes,
    vary_dropout,
)
from kubetrain_trainer.tensorflow_multiworker.precision import answer, precision_of, use_precision
from kubetrain_trainer.tensorflow_multiworker.staging import Staging
from kubetrain_trainer.tensorflow_multiworker.task import Task, build_task
from kubetrain_trainer.termination import report_result
from kubetrain_trainer.training_output import TrainingOutput
from kubetrain_trainer.training_report import TrainingReport
from kubetrain_trainer.watchdog import Watchdog

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Training:
    """All that the loop works with; what changes is in the model, the optimizer and the progress."""

    config: TrainConfig
    output: TrainingOutput
    role: ProcessRole
    strategy: tf.distribute.Strategy
    task: Task
    optimizer: keras.Optimizer
    averages: Averages | None
    writer: CheckpointWriter
    staging: Staging
    recent: RecentSteps
    watchdog: Watchdog

    @property
    def judged(self) -> Task:
        """The task as it is validated: with the averaged weights, where they are kept."""
        return replace(self.task, model=self.averages.model) if self.averages else self.task

    @property
    def replicas(self) -> int:
        """Copies of the model: one for each GPU of each process, or for each process without one."""
        return int(self.strategy.num_replicas_in_sync)

    @property
    def local_replicas(self) -> int:
        return self.replicas // self.role.world_size

    @property
    def global_batch(self) -> int:
        return self.config.batch_size * self.replicas


def train(arguments: Arguments) -> None:
    """Train to the end, from the newest checkpoint where there is one, and export the model that is chosen."""
    keep_freed_memory()
    output, role = arguments.output, tensorflow_role()
    with process_group(arguments.config, role) as strategy:
        if role.is_chief:
            output.begin("tensorflow", arguments.config, arguments.dataset_digest)
        if not from_chief(output.is_finished, role, strategy):
            with telling(lambda: f"at the start, with batch_size={arguments.config.batch_size}"):
                training = build_training(arguments, role, strategy)
            if role.is_chief:
                log.info(describe_group(role, arguments.config, precision_of(arguments.config)))
            with training.writer, training.watchdog, telling(lambda: doing(training)):
                run_epochs(training)
            if role.is_chief:
                finish(training, arguments)
    if role.is_chief:
        report_result(output.read_result() or {})


def run_epochs(training: Training) -> None:
    config, role = training.config, training.role
    samples, validation = training.task.data("train"), training.task.data(config.validation_split)
    resumed, saved_step = resume(training)
    plan = SamplePlan(size=len(samples), batch_size=config.batch_size, world_size=training.replicas, seed=config.seed)
    progress = plan.resumed(resumed)
    report = TrainingReport(config, training.output, plan, role, progress.step, gpu_memory_peak)
    take_step = step_function(training)
    vary_dropout(training.task.model, training.strategy)

    while not is_finished(config, progress):
        shares = list(zip(*local_shares(training, plan, progress), strict=True))
        batches = local_batches(training, samples, shares)
        for share, (inputs, targets) in zip(shares, report.window.waiting_for(batches), strict=True):
            global_size = share[0].global_size
            progress = progress.after_step(global_size, plan.size)
            epochs_done = plan.epochs_done(progress.epoch, progress.samples_in_epoch)
            rate = learning_rate(config, epochs_done, training.global_batch)
            parts = share[0].parts(config.accumulate, training.replicas)
            is_taken = take_step(inputs, targets, global_size, progress.step, rate, parts)
            if is_taken and training.averages:
                training.averages.update(progress.step)
            training.writer.check()
            report.window.count_step(global_size)

            if progress.step % config.log_every == 0 or is_finished(config, progress):
                report.steps(progress, training.recent.mean_loss(), rate, training.recent.skipped)
            if progress.step % config.checkpoint_every == 0 and may_save(training, progress):
                saved_step = validate_and_save(training, validation, progress, report)
            if is_finished(config, progress):
                break
            training.watchdog.beat(f"step {progress.step + 1}")
    if saved_step != progress.step:
        validate_and_save(training, validation, progress, report)
    report.end()


def doing(training: Training) -> str:
    return f"in {training.watchdog.doing}, with batch_size={training.config.batch_size}"


def build_training(arguments: Arguments, role: ProcessRole, strategy: tf.distribute.Strategy) -> Training:
    config = arguments.config
    use_precision(config)
    keras.utils.set_random_seed(config.seed)  # the same first weights in every process
    with strategy.scope():
        task = build_task(config, arguments.data_dir)
        config.check_metric(task.metrics)
        optimizer = build_optimizer(config, task.model)
        averages = build_averages(arguments, task.model, strategy) if config.ema_decay else None
    writer = CheckpointWriter(arguments.output, config)
    return Training(
        config=config,
        output=arguments.output,
        role=role,
        strategy=strategy,
        task=task,
        optimizer=optimizer,
        averages=averages,
        writer=writer,
        staging=Staging(keeps=role.is_chief),
        recent=RecentSteps(
            config,
            role,
            read_numbers,
            lambda values: sum_over_processes(np.array(values), role, strategy).tolist(),
            lambda: from_chief(writer.way_on, role, strategy),
        ),
        watchdog=Watchdog(config, role),
    )


def build_averages(arguments: Arguments, model: keras.Model, strategy: tf.distribute.Strategy) -> Averages:
    averaged = build_task(arguments.config, arguments.data_dir).model  # not every model can be copied
    return Averages(arguments.config, model, averaged, strategy)


def build_optimizer(config: TrainConfig, model: keras.Model) -> keras.Optimizer:
    if config.optimizer == "adamw":
        optimizer = keras.optimizers.AdamW(config.learning_rate, weight_decay=config.weight_decay)
    else:
        optimizer = keras.optimizers.SGD(config.learning_rate, momentum=config.momentum)
    optimizer.build(model.trainable_variables)
    optimizer._all_reduce_sum_gradients = list  # join_gradients does: what it is given is of all replicas already
    return optimizer


def resume(training: Training) -> tuple[Progress, int]:
    """Where to go on, and the step of this run's newest checkpoint (-1: none)."""
    path = from_chief(lambda: find_checkpoint(training), training.role, training.strategy)
    if path is None:
        return Progress(), -1
    log.info("rank %d resumes from %s", training.role.rank, path)
    checkpoint = open_checkpoint(Path(path))
    restore(checkpoint, training.config, training.task.model, training.optimizer, training.averages)
    return checkpoint.progress, checkpoint.step if checkpoint.path.parent == training.output.checkpoints else -1


def find_checkpoint(training: Training) -> str | None:
    remove_partial(training.output.checkpoints)
    checkpoint = training.output.checkpoint_to_resume(training.config.resume_from)
    return str(checkpoint.path) if checkpoint else None


def is_finished(config: TrainConfig, progress: Progress) -> bool:
    return progress.epoch >= config.epochs or (config.max_steps > 0 and progress.step >= config.max_steps)


def local_shares(training: Training, plan: SamplePlan, progress: Progress) -> list[Iterator[Batch]]:
    """What is left of the epoch for each replica of this process."""
    first = training.role.rank * training.local_replicas
    return [
        plan.batches(progress.epoch, rank, start=progress.samples_in_epoch)
        for rank in range(first, first + training.local_replicas)
    ]


def local_batches(training: Training, samples: Any, shares: list[tuple[Batch, ...]]) -> Iterator[tuple[Any, Any]]:
    """At each step a batch for each replica of this process.

    Not from the strategy's own distributed data sets: these ask all processes at each step whether all have one more.
    """
    batches = iter(load(samples, [share.indices for step in shares for share in step]))
    if training.local_replicas == 1:
        yield from batches
        return
    for _ in shares:
        yield for_each_replica(training, [next(batches) for _ in range(training.local_replicas)])


def for_each_replica(training: Training, values: list[Any]) -> Any:
    return training.strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group % training.local_replicas]
    )


def step_function(training: Training) -> Callable[..., bool]:
    """One step of all processes together; whether it was taken, rather than skipped.

    Where steps may be skipped, the host decides between two graphs: none with a condition can hold an update.
    """
    skips, run_all = training.config.on_nan == "skip", training.strategy.run
    variables, statistics = training.task.model.trainable_variables, training.task.model.non_trainable_variables

    gradients_of = partial(sum_gradients, training)
    if training.config.compile:  # what each process computes by itself: their exchange cannot be
        gradients_of = tf.function(gradients_of, jit_compile=True)

    def compute_local(*arguments: Any) -> tuple[Any, ...]:
        before = [tf.identity(variable.value) for variable in statistics] if skips else []
        loss, gradients = gradients_of(*arguments)
        return loss, before, *join_gradients(training.config, gradients, variables)

    def update_local(gradients: list[Any]) -> None:
        training.optimizer.apply_gradients(zip(gradients, variables, strict=True))

    def restore_local(before: list[tf.Tensor]) -> None:
        for variable, value in zip(statistics, before, strict=True):
            variable.value.assign(value)

    @tf.function(reduce_retracing=True)
    def compute(rate: tf.Tensor, *arguments: Any) -> tuple[Any, ...]:
        training.optimizer.learning_rate.assign(rate)
        losses, before, norms, gradients = run_all(compute_local, args=arguments)
        if not skips:
            run_all(update_local, args=(gradients,))
            gradients = []
        local_losses = training.strategy.experimental_local_results(losses)
        loss = tf.add_n(local_losses) * training.role.world_size
        return loss, training.strategy.experimental_local_results(norms)[0], before, gradients

    update = tf.function(lambda gradients: run_all(update_local, args=(gradients,)))
    restore = tf.function(lambda before: run_all(restore_local, args=(before,)))

    def take_step(inputs: Any, targets: Any, global_size: int, step: int, rate: float, parts: int) -> bool:
        loss, norm, before, gradients = compute(
            tf.constant(rate), inputs, targets, tf.constant(float(global_size)), parts
        )
        is_taken = training.recent.may_change(step, rate, loss, norm)
        if not is_taken:
            restore(before)
        elif skips:
            update(gradients)
        return is_taken

    return take_step


def sum_gradients(
    training: Training, inputs: Any, targets: Any, global_size: tf.Tensor, parts: int
) -> tuple[tf.Tensor, list[Any]]:
    """This replica's part of the loss and of its gradient, computed in parts."""
    first, *others = split([inputs, targets], parts)
    loss, gradients = compute_gradients(training, global_size, *first)
    for part in others:
        # One after another: all at once would take as much memory as the whole.
        with tf.control_dependencies([gradient for gradient in gradients if gradient is not None]):
            part_loss, part_gradients = compute_gradients(training, global_size, *part)
        loss += part_loss
        pairs = zip(gradients, part_gradients, strict=True)
        gradients = [one if one is None else tf.add_n([one, other]) for one, other in pairs]
    return loss, gradients


def compute_gradients(
    training: Training, global_size: tf.Tensor, inputs: Any, targets: Any
) -> tuple[tf.Tensor, list[Any]]:
    model, task = training.task.model, training.task
    with tf.GradientTape() as tape:
        losses = (task.training_loss or task.loss)(answer(model, inputs, training=True), targets)
        loss = tf.reduce_sum(losses) / global_size
    return loss, tape.gradient(loss, model.trainable_variables)


def join_gradients(config: TrainConfig, gradients: list[Any], variables: list[Any]) -> tuple[tf.Tensor, list[Any]]:
    """The norm of the gradient of all replicas, and this gradient clipped, with the weight decay of SGD.

    Keras would clip each replica's gradient before they are summed, which is another norm; its weight decay bypasses
    the momentum, unlike PyTorch's.
    """
    present = [gradient for gradient in gradients if gradient is not None]
    summed = iter(tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, present))
    joined = [None if gradient is None else next(summed) for gradient in gradients]
    norm = tf.linalg.global_norm(joined)
    if config.clip_norm:
        joined, _ = tf.clip_by_global_norm(joined, config.clip_norm, use_norm=norm)
    decay = config.weight_decay if config.optimizer == "sgd" else 0.0
    return norm, [
        None if gradient is None else gradient + decay * variable
        for gradient, variable in zip(joined, variables, strict=True)
    ]


def may_save(training: Training, progress: Progress) -> bool:
    """Whether the checkpoint before is written; else all go on, rather than validate for nothing."""
    return from_chief(lambda: training.writer.is_free(progress.step), training.role, training.strategy)


def validate_and_save(training: Training, validation: Any, progress: Progress, report: TrainingReport) -> int:
    """Evaluate on the validation split and have a checkpoint written that knows how it did; returns its step."""
    config, role, task = training.config, training.role, training.task
    training.recent.look()  # what a bad step spoiled is not to be saved
    with report.window.paused():
        share_statistics(task.model, role, training.strategy)
        if training.averages:
            share_statistics(training.averages.model, role, training.strategy)
        beat = partial(training.watchdog.beat, f"the validation after step {progress.step}")
        metrics = mean_metrics(training.judged, validation, config, role, training.strategy, beat)
        details = {"world_size": role.world_size, "metrics": metrics}
        parts = (task.model, training.optimizer, training.averages)
        began = time.perf_counter()
        with training.watchdog.paused():
            save(training.writer, training.staging, progress, details, *parts, role)
        report.checkpoint(progress, metrics, stall_seconds=time.perf_counter() - began)
    return progress.step


def finish(training: Training, arguments: Arguments) -> None:
    """Export the checkpoint that becomes the model, and record how far the training got."""
    output = training.output
    chosen = choose_checkpoint(output.checkpoints, training.config)
    # A model of its own, outside the strategy: the training's is one that all processes share.
    model = build_task(training.config, arguments.data_dir).model
    export(output, chosen, {"classes": training.task.classes}, model)
    output.finish()


if __name__ == "__main__":
    run(lambda: train(training_arguments("Train with TensorFlow MultiWorkerMirroredStrategy.")))
