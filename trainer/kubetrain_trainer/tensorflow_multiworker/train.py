"""Train with MultiWorkerMirroredStrategy.

TF_CONFIG='{…}' python -m kubetrain_trainer.tensorflow_multiworker.train --data-dir DATA --output-dir OUTPUT
"""

import logging
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn

from kubetrain_trainer.allocator import keep_freed_memory
from kubetrain_trainer.checkpoint_layout import Progress, choose_checkpoint, open_checkpoint, remove_partial
from kubetrain_trainer.entry_point import Arguments, run, training_arguments
from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.failures import annotating_errors
from kubetrain_trainer.process_role import tensorflow_role
from kubetrain_trainer.sampling import Batch, SamplePlan
from kubetrain_trainer.schedule import is_finished, learning_rate
from kubetrain_trainer.tensorflow_multiworker.checkpoint import export, restore, save
from kubetrain_trainer.tensorflow_multiworker.data import load
from kubetrain_trainer.tensorflow_multiworker.evaluate import mean_metrics
from kubetrain_trainer.tensorflow_multiworker.group import (
    describe_group,
    from_chief,
    gpu_memory_peak,
    process_group,
    share_statistics,
    vary_dropout,
)
from kubetrain_trainer.tensorflow_multiworker.precision import precision_of
from kubetrain_trainer.tensorflow_multiworker.step import step_function
from kubetrain_trainer.tensorflow_multiworker.task import build_task
from kubetrain_trainer.tensorflow_multiworker.training import Training, build_training
from kubetrain_trainer.termination import report_result
from kubetrain_trainer.training_report import TrainingReport

log = logging.getLogger(__name__)


def train(arguments: Arguments) -> None:
    """Train to the end, from the newest checkpoint where there is one, and export the model that is chosen."""
    keep_freed_memory()
    output, role = arguments.output, tensorflow_role()
    with process_group(arguments.config, role) as strategy:
        if role.is_chief:
            output.begin("tensorflow", arguments.config, arguments.dataset_digest)
        if not from_chief(output.is_finished, role, strategy):
            with annotating_errors(lambda: f"at the start, with batch_size={arguments.config.batch_size}"):
                training = build_training(arguments, role, strategy)
            if role.is_chief:
                log.info(describe_group(role, arguments.config, precision_of(arguments.config)))
            with training.writer, training.watchdog, training.stop, annotating_errors(lambda: training.doing):
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
    report = TrainingReport(
        config, training.output, plan, role, progress.step, gpu_memory_peak, training.sum_over_processes
    )
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

            stops = training.stop.is_due()
            if progress.step % config.log_every == 0 or is_finished(config, progress) or stops:
                report.steps(progress, training.recent.mean_loss(), rate, training.recent.skipped)
            if stops:
                save_and_stop(training, progress)
            if progress.step % config.checkpoint_every == 0 and may_save(training, progress):
                saved_step = validate_and_save(training, validation, progress, report)
            if is_finished(config, progress):
                break
            training.watchdog.beat(f"step {progress.step + 1}")
    if saved_step != progress.step:
        validate_and_save(training, validation, progress, report)
    report.end()


def resume(training: Training) -> tuple[Progress, int]:
    """Where to go on, and the step of this run's newest checkpoint (-1: none, or one that was not validated)."""
    path = from_chief(lambda: find_checkpoint(training), training.role, training.strategy)
    if path is None:
        return Progress(), -1
    log.info("rank %d resumes from %s", training.role.rank, path)
    checkpoint = open_checkpoint(Path(path))
    restore(checkpoint, training.config, training.task.model, training.optimizer, training.averages)
    is_done = checkpoint.path.parent == training.output.checkpoints and checkpoint.is_validated
    return checkpoint.progress, checkpoint.step if is_done else -1


def find_checkpoint(training: Training) -> str | None:
    remove_partial(training.output.checkpoints)
    checkpoint = training.output.checkpoint_to_resume(training.config.resume_from)
    return str(checkpoint.path) if checkpoint else None


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


def may_save(training: Training, progress: Progress) -> bool:
    """Whether the checkpoint before is written; else all go on, rather than validate for nothing."""
    return from_chief(lambda: training.writer.is_free(progress.step), training.role, training.strategy)


def validate_and_save(training: Training, validation: Any, progress: Progress, report: TrainingReport) -> int:
    """Evaluate on the validation split and have a checkpoint written that knows how it did; returns its step."""
    training.recent.look()  # what a bad step spoiled is not to be saved
    with report.window.paused():
        share_all_statistics(training)
        metrics = mean_metrics(training, validation, progress.step)
        if metrics is None:
            save_and_stop(training, progress)
        began = time.perf_counter()
        save_state(training, progress, metrics)
        report.checkpoint(progress, metrics, stall_seconds=time.perf_counter() - began)
    return progress.step


def share_all_statistics(training: Training) -> None:
    share_statistics(training.task.model, training.role, training.strategy)
    if training.averages:
        share_statistics(training.averages.model, training.role, training.strategy)


def save_state(training: Training, progress: Progress, metrics: Mapping[str, float]) -> None:
    details = {"world_size": training.role.world_size, "metrics": metrics}
    parts = (training.task.model, training.optimizer, training.averages)
    with training.watchdog.paused():
        save(training.writer, training.staging, progress, details, *parts, training.role)


def save_and_stop(training: Training, progress: Progress) -> NoReturn:
    """Save without validating, which could take longer than is left; every process ends when all is written."""
    share_all_statistics(training)
    save_state(training, progress, metrics={})
    with training.watchdog.paused():
        raise Stopped(from_chief(training.writer.conclude_stop, training.role, training.strategy))


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
