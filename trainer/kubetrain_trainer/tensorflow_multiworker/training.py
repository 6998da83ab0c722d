"""The objects that the training loop uses."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from kubetrain_trainer.data.sampling import check_sampler
from kubetrain_trainer.loop.recent_steps import RecentSteps
from kubetrain_trainer.loop.same_everywhere import Replicas, check_same_data
from kubetrain_trainer.loop.training import AnyTraining, splits
from kubetrain_trainer.models.initial_weights import initial_weights, warn_of_frozen
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.processes.watchdog import Watchdog
from kubetrain_trainer.reporting.own_time import HostClock, OwnTime
from kubetrain_trainer.reporting.profile import Profile
from kubetrain_trainer.settings.layers import warn_of_slow_layers
from kubetrain_trainer.tensorflow_multiworker.checkpoint import EXPORT_FILE, Staging, export, restore, save
from kubetrain_trainer.tensorflow_multiworker.group import Group
from kubetrain_trainer.tensorflow_multiworker.initial_weights import load_initial_weights
from kubetrain_trainer.tensorflow_multiworker.layers import factors_of, freeze, norm_of
from kubetrain_trainer.tensorflow_multiworker.loading import check_samples, draw
from kubetrain_trainer.tensorflow_multiworker.measures import check_metrics
from kubetrain_trainer.tensorflow_multiworker.optimizer import Averages, build_optimizer
from kubetrain_trainer.tensorflow_multiworker.precision import use_precision
from kubetrain_trainer.tensorflow_multiworker.stopping import Stop
from kubetrain_trainer.tensorflow_multiworker.task import KerasTask, build_task


@contextmanager
def recording(path: Path) -> Iterator[None]:
    """Record the operators of this process on the CPU and its GPUs, for TensorBoard with the package xprof."""
    tf.profiler.experimental.start(str(path))
    try:
        yield
    finally:
        tf.profiler.experimental.stop()


@dataclass(frozen=True, kw_only=True)
class Training(AnyTraining):
    group: Group
    data_dir: Path
    task: KerasTask
    samples: Any
    validation: Any
    optimizer: keras.Optimizer
    averages: Averages | None
    staging: Staging
    stop: Stop

    def restore(self, checkpoint: Checkpoint) -> None:
        restore(checkpoint, self.config, self.task.model, self.optimizer, self.averages)

    def save(self, progress: TrainingProgress, details: Mapping[str, Any]) -> None:
        state = (self.task.model, self.optimizer, self.averages)
        save(self.writer, self.staging, progress, details, *state, self.group.role)

    def export(self, checkpoint: Checkpoint) -> None:
        # A new model outside the strategy, because all processes share the variables of the training's model.
        model = build_task(self.config, self.data_dir).model
        export(self.output, checkpoint, {"classes": self.task.classes}, model)


def build_training(arguments: Arguments, group: Group, watchdog: Watchdog) -> Training:
    config, strategy = arguments.config, group.strategy
    use_precision(config)
    keras.utils.set_random_seed(config.seed)  # the same initial weights in every process
    with strategy.scope():
        task = build_task(config, arguments.data_dir)
        config.check_metric(task.metrics)
        check_metrics(task.metrics)
        watchdog.beat_start()
        weights = initial_weights(arguments, group, [EXPORT_FILE])
        new = load_initial_weights(weights, task.model) if weights else []
        freeze(task.model, config.freeze)
        optimizer, peak_rate = build_optimizer(config, task, config.global_batch(group.replicas))
        averages = build_averages(arguments, task.model, strategy) if config.ema_decay else None
    if task.sampler:
        check_sampler(task.sampler, group)
    if group.role.is_rank_0:
        warn_of_frozen(layer.name for layer in new if not layer.trainable)
        warn_of_slow_layers(factors_of(task.model, config.layer_rate), config.layer_rate)
    watchdog.beat_start()
    samples, validation = splits(task, config, group)
    check_samples(samples)
    check_samples(validation)
    drawing = None if hasattr(samples, "files_checksum") else partial(draw, samples, task.collate)
    check_same_data(samples, validation, drawing, config.seed, group)
    writer = CheckpointWriter(arguments.output, config)
    return Training(
        config=config,
        output=arguments.output,
        group=group,
        data_dir=arguments.data_dir,
        task=task,
        samples=samples,
        validation=validation,
        optimizer=optimizer,
        peak_rate=peak_rate,
        averages=averages,
        writer=writer,
        staging=Staging(is_needed=group.role.is_rank_0),
        recent=RecentSteps(config, group, writer.resume_hint),
        replicas=Replicas(group, partial(norm_of, task.model)),
        profile=Profile(config, arguments.output, group.role, recording),
        watchdog=watchdog,
        own_time=OwnTime(HostClock()),
        stop=Stop(strategy),
    )


def build_averages(arguments: Arguments, model: keras.Model, strategy: tf.distribute.Strategy) -> Averages:
    averaged = build_task(arguments.config, arguments.data_dir).model  # a copy would fail for some models
    return Averages(arguments.config, model, averaged, strategy)
