"""What the loop works with: the task, and all that trains, watches, stops and saves it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import keras
import numpy as np
import tensorflow as tf

from kubetrain_trainer.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.entry_point import Arguments
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.recent_steps import RecentSteps
from kubetrain_trainer.tensorflow_multiworker.averaging import Averages
from kubetrain_trainer.tensorflow_multiworker.group import from_chief, read_numbers, sum_over_processes
from kubetrain_trainer.tensorflow_multiworker.precision import use_precision
from kubetrain_trainer.tensorflow_multiworker.staging import Staging
from kubetrain_trainer.tensorflow_multiworker.stopping import Stop
from kubetrain_trainer.tensorflow_multiworker.task import Task, build_task
from kubetrain_trainer.training_output import TrainingOutput
from kubetrain_trainer.watchdog import Watchdog


@dataclass(frozen=True, kw_only=True)
class Training:
    """What changes is in the model, the optimizer and the progress."""

    config: TrainConfig
    output: TrainingOutput
    role: ProcessRole
    strategy: tf.distribute.Strategy
    task: Task
    optimizer: keras.Optimizer
    averages: Averages | None
    writer: CheckpointWriter
    staging: Staging
    sum_over_processes: Callable[[list[float]], list[float]]
    recent: RecentSteps
    watchdog: Watchdog
    stop: Stop

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

    @property
    def doing(self) -> str:
        return f"in {self.watchdog.doing}, with batch_size={self.config.batch_size}"


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

    def sum_numbers(values: list[float]) -> list[float]:
        sums: list[float] = sum_over_processes(np.array(values), role, strategy).tolist()
        return sums

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
        sum_over_processes=sum_numbers,
        recent=RecentSteps(
            config, role, read_numbers, sum_numbers, lambda: from_chief(writer.resume_hint, role, strategy)
        ),
        watchdog=Watchdog(config, role),
        stop=Stop(strategy),
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
