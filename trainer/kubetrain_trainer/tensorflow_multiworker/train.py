"""Train with MultiWorkerMirroredStrategy.

TF_CONFIG='{…}' python -m kubetrain_trainer.tensorflow_multiworker.train --data-dir DATA --output-dir OUTPUT
"""

import logging
from collections.abc import Iterator
from functools import partial
from itertools import tee
from typing import Any

from kubetrain_trainer.checkpoint_layout import TrainingProgress
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.dataset_files import check_no_file_is_lost
from kubetrain_trainer.entry_point import Arguments, run, training_arguments
from kubetrain_trainer.failures import annotating_errors
from kubetrain_trainer.lifecycle import finish, may_save, resume, running, save_and_stop, save_checkpoint
from kubetrain_trainer.process_role import ProcessRole, tensorflow_role
from kubetrain_trainer.sampling import Batch, SamplePlan, plan_samples
from kubetrain_trainer.schedule import is_finished
from kubetrain_trainer.stream_plan import remaining_batches
from kubetrain_trainer.tensorflow_multiworker.evaluate import mean_metrics
from kubetrain_trainer.tensorflow_multiworker.group import Group, join_group, vary_dropout
from kubetrain_trainer.tensorflow_multiworker.loading import keep_memory, load
from kubetrain_trainer.tensorflow_multiworker.step import step_function
from kubetrain_trainer.tensorflow_multiworker.training import Training, build_training
from kubetrain_trainer.termination import report_result
from kubetrain_trainer.time_spent import conclude
from kubetrain_trainer.training_report import TrainingReport

log = logging.getLogger(__name__)


def train(arguments: Arguments) -> None:
    """Train, resuming from the newest checkpoint if there is one, and export the chosen checkpoint as the model."""
    output, role = arguments.output, tensorflow_role()
    if output.is_finished():  # the others may have ended, so that this process would wait for them
        if role.is_chief:
            output.begin("tensorflow", arguments.config, arguments.dataset_digest)
    else:
        train_together(arguments, role)
    if role.is_chief:
        report_result({**(output.read_result() or {}), "time": conclude(output.time_spent)})


def train_together(arguments: Arguments, role: ProcessRole) -> None:
    output = arguments.output
    with join_group(arguments.config, role) as group:
        keep_memory()
        if role.is_chief:
            check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
            output.begin("tensorflow", arguments.config, arguments.dataset_digest)
        if not group.from_chief(output.is_finished):
            with annotating_errors(lambda: f"at the start, with batch_size={arguments.config.batch_size}"):
                training = build_training(arguments, group)
            if role.is_chief:
                log.info(group.describe(arguments.config))
            with running(training):
                run_epochs(training)
            if role.is_chief:
                finish(training)


def run_epochs(training: Training) -> None:
    config, group = training.config, training.group
    groups = getattr(training.samples, "groups", None)
    plan = plan_samples(len(training.samples), config, group.replicas, training.task.sampler, groups)
    progress, validated_step = resume(training, plan)
    own_time, at_peak = training.own_time, training.seconds_at_peak
    report = TrainingReport(config, training.output, plan, group, progress, own_time, at_peak)
    validate = partial(mean_metrics, training)
    take_step = step_function(training)
    vary_dropout(training.task.model, group.strategy)

    batches, ahead = tee(local_batches(plan, config, progress, group))
    loaded = load_batches(training, ahead)
    # What is loaded comes first: until then, TensorFlow's thread may be computing the step's batches.
    for (inputs, targets), (batch, *_) in zip(own_time.loading(loaded), batches, strict=True):
        progress = progress.after_step(batch.global_size, plan.size)  # progress.step is now this step's number
        training.profile.begin_step(progress.step)
        rate = training.rate_factor(progress, plan) * training.peak_rate
        parts = batch.parts(config, group.replicas)
        is_taken = take_step(inputs, targets, batch.global_size, progress.step, rate, parts)
        if is_taken and training.averages:
            training.averages.update(progress.step)
        training.profile.end_step(progress.step)
        training.writer.check()
        own_time.end_step()
        report.window.count_step(batch.global_size)

        stops = training.stop.is_due()
        if progress.step % config.log_every == 0 or is_finished(config, progress) or stops:
            report.steps(progress, training.recent.means(), rate, training.recent.skipped)
        if stops:
            save_and_stop(training, progress, report)
        if progress.step % config.checkpoint_every == 0 and may_save(training, progress):
            validated_step = save_checkpoint(training, validate, progress, report, validated_step)
        if is_finished(config, progress):
            break
        training.watchdog.beat(f"step {progress.step + 1}")
    if validated_step != progress.step:
        save_checkpoint(training, validate, progress, report, validated_step)
    report.end()


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
        yield group.for_each_replica(of_replicas)


if __name__ == "__main__":
    run(lambda: train(training_arguments("Train with TensorFlow MultiWorkerMirroredStrategy.")))
