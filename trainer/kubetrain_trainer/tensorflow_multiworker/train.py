"""Train with MultiWorkerMirroredStrategy.

TF_CONFIG='{…}' python -m kubetrain_trainer.tensorflow_multiworker.train --data-dir DATA --output-dir OUTPUT
"""

import logging
from collections.abc import Iterator
from functools import partial
from typing import Any

from kubetrain_trainer.allocator import keep_freed_memory
from kubetrain_trainer.checkpoint_layout import Progress
from kubetrain_trainer.entry_point import Arguments, run, training_arguments
from kubetrain_trainer.failures import annotating_errors
from kubetrain_trainer.lifecycle import finish, may_save, resume, save_and_stop, validate_and_save
from kubetrain_trainer.process_role import tensorflow_role
from kubetrain_trainer.sampling import Batch, SamplePlan
from kubetrain_trainer.schedule import is_finished, learning_rate
from kubetrain_trainer.tensorflow_multiworker.data import load
from kubetrain_trainer.tensorflow_multiworker.evaluate import mean_metrics
from kubetrain_trainer.tensorflow_multiworker.group import join_group, vary_dropout
from kubetrain_trainer.tensorflow_multiworker.step import step_function
from kubetrain_trainer.tensorflow_multiworker.training import Training, build_training
from kubetrain_trainer.termination import report_result
from kubetrain_trainer.training_report import TrainingReport

log = logging.getLogger(__name__)


def train(arguments: Arguments) -> None:
    """Train to the end, from the newest checkpoint where there is one, and export the model that is chosen."""
    keep_freed_memory()
    output = arguments.output
    with join_group(arguments.config, tensorflow_role()) as group:
        if group.role.is_chief:
            output.begin("tensorflow", arguments.config, arguments.dataset_digest)
        if not group.from_chief(output.is_finished):
            with annotating_errors(lambda: f"at the start, with batch_size={arguments.config.batch_size}"):
                training = build_training(arguments, group)
            if group.role.is_chief:
                log.info(group.describe(arguments.config))
            with training.writer, training.watchdog, training.stop, annotating_errors(lambda: training.doing):
                run_epochs(training)
            if group.role.is_chief:
                finish(training)
    if group.role.is_chief:
        report_result(output.read_result() or {})


def run_epochs(training: Training) -> None:
    config, group = training.config, training.group
    samples, validation = training.task.data("train"), training.task.data(config.validation_split)
    resumed, saved_step = resume(training)
    plan = SamplePlan(size=len(samples), batch_size=config.batch_size, world_size=group.replicas, seed=config.seed)
    progress = plan.resumed(resumed)
    report = TrainingReport(config, training.output, plan, group, progress.step)
    validate = partial(mean_metrics, training, validation)
    take_step = step_function(training)
    vary_dropout(training.task.model, training.group.strategy)

    while not is_finished(config, progress):
        shares = list(zip(*local_shares(training, plan, progress), strict=True))
        batches = local_batches(training, samples, shares)
        for share, (inputs, targets) in zip(shares, report.window.waiting_for(batches), strict=True):
            global_size = share[0].global_size
            progress = progress.after_step(global_size, plan.size)
            epochs_done = plan.epochs_done(progress.epoch, progress.samples_in_epoch)
            rate = learning_rate(config, epochs_done, training.global_batch)
            parts = share[0].parts(config.accumulate, group.replicas)
            is_taken = take_step(inputs, targets, global_size, progress.step, rate, parts)
            if is_taken and training.averages:
                training.averages.update(progress.step)
            training.writer.check()
            report.window.count_step(global_size)

            stops = training.stop.is_due()
            if progress.step % config.log_every == 0 or is_finished(config, progress) or stops:
                report.steps(progress, training.recent.mean_loss(), rate, training.recent.skipped)
            if stops:
                save_and_stop(training, progress)
            if progress.step % config.checkpoint_every == 0 and may_save(training, progress):
                saved_step = validate_and_save(training, validate, progress, report)
            if is_finished(config, progress):
                break
            training.watchdog.beat(f"step {progress.step + 1}")
    if saved_step != progress.step:
        validate_and_save(training, validate, progress, report)
    report.end()


def local_shares(training: Training, plan: SamplePlan, progress: Progress) -> list[Iterator[Batch]]:
    """What is left of the epoch for each replica of this process."""
    first = training.group.role.rank * training.group.local_replicas
    return [
        plan.batches(progress.epoch, rank, start=progress.samples_in_epoch)
        for rank in range(first, first + training.group.local_replicas)
    ]


def local_batches(training: Training, samples: Any, shares: list[tuple[Batch, ...]]) -> Iterator[tuple[Any, Any]]:
    """At each step a batch for each replica of this process.

    Not from the strategy's own distributed data sets: these ask all processes at each step whether all have one more.
    """
    batches = iter(load(samples, [share.indices for step in shares for share in step]))
    if training.group.local_replicas == 1:
        yield from batches
        return
    for _ in shares:
        yield for_each_replica(training, [next(batches) for _ in range(training.group.local_replicas)])


def for_each_replica(training: Training, values: list[Any]) -> Any:
    return training.group.strategy.experimental_distribute_values_from_function(
        lambda context: values[context.replica_id_in_sync_group % training.group.local_replicas]
    )


if __name__ == "__main__":
    run(lambda: train(training_arguments("Train with TensorFlow MultiWorkerMirroredStrategy.")))
