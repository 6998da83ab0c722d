"""Train with MultiWorkerMirroredStrategy.

TF_CONFIG='{…}' python -m kubetrain_trainer.tensorflow_multiworker.train --data-dir DATA --output-dir OUTPUT
"""

from collections.abc import Iterator
from functools import partial
from itertools import tee
from typing import Any

from kubetrain_trainer.data.sampling import Batch, SamplePlan, plan_samples
from kubetrain_trainer.data.stream_plan import remaining_batches
from kubetrain_trainer.loop.train import recorded_run, resume, run_steps, train_together
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.processes.entry_point import Arguments, run, training_arguments
from kubetrain_trainer.processes.process_role import tensorflow_role
from kubetrain_trainer.processes.watchdog import Watchdog
from kubetrain_trainer.reporting.time_spent import conclude
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker.evaluate import mean_metrics
from kubetrain_trainer.tensorflow_multiworker.group import Group, join_group, vary_dropout
from kubetrain_trainer.tensorflow_multiworker.loading import keep_memory, load
from kubetrain_trainer.tensorflow_multiworker.step import step_function
from kubetrain_trainer.tensorflow_multiworker.training import Training, build_training
from kubetrain_trainer.termination import report_result


def train(arguments: Arguments) -> None:
    output, role = arguments.output, tensorflow_role()
    if output.is_finished():  # the others may have ended, so that this process would wait for them
        if role.is_rank_0:
            output.begin("tensorflow", arguments.config, arguments.dataset_digest)
    else:
        with Watchdog(arguments.config, role) as watchdog, join_group(arguments.config, role) as group:
            keep_memory()
            with recorded_run("tensorflow", arguments, role):
                if not group.from_rank_0(output.is_finished):
                    train_together(arguments, group, watchdog, build_training, run_epochs)
    if role.is_rank_0:
        report_result({**(output.read_result() or {}), "time": conclude(output.time_spent)})


def run_epochs(training: Training) -> None:
    config, group = training.config, training.group
    groups = getattr(training.samples, "groups", None)
    plan = plan_samples(len(training.samples), config, group.replicas, training.task.sampler, groups)
    resumed = progress, _ = resume(training, plan)
    take_step = step_function(training)
    vary_dropout(training.task.model, group.strategy)
    batches, ahead = tee(local_batches(plan, config, progress, group))
    firsts = (first for first, *_ in batches)

    def take(loaded: Any, batch: Batch, step: int, factor: float) -> bool:
        micro_batches = batch.micro_batches(config, group.replicas)
        return take_step(*loaded, batch.global_size, step, factor * training.peak_rate, micro_batches)

    # What is loaded comes first: until then, TensorFlow's thread may be computing the step's batches.
    steps = zip(load_batches(training, ahead), firsts, strict=True)
    run_steps(training, plan, resumed, steps, take, partial(mean_metrics, training))


def local_batches(
    plan: SamplePlan, config: TrainConfig, progress: TrainingProgress, group: Group
) -> Iterator[tuple[Batch, ...]]:
    """Yield the batches of this process's replicas for all remaining steps of the training."""
    first = group.role.rank * group.local_replicas
    replicas = range(first, first + group.local_replicas)
    return zip(*(remaining_batches(plan, config, progress, replica) for replica in replicas), strict=True)


def load_batches(training: Training, batches: Iterator[tuple[Batch, ...]]) -> Iterator[tuple[Any, Any]]:
    """Yield inputs and targets of each step, with a batch for each replica of this process.

    The strategy's distributed datasets are not used, because at each step they ask all processes for another batch.
    """
    group = training.group
    keys = (batch.keys for step in batches for batch in step)
    loaded = load(training.samples, keys, training.task.collate, group.role.world_size)
    for of_replicas in zip(*[loaded] * group.local_replicas, strict=True):
        yield group.distributed_value(of_replicas)


if __name__ == "__main__":
    run(lambda: train(training_arguments("Train with TensorFlow MultiWorkerMirroredStrategy.")))
