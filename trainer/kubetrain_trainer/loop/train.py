"""A training from its first line to its export, the same for every framework, to be read from top to bottom.

A framework's train() enters recorded_run() and calls train_together(), which builds the training, lets the framework's
run_epochs() call resume() and run_steps(), and exports the model. All processes call these functions at the same step.
"""

import contextlib
import logging
import math
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NoReturn, TypeVar

from kubetrain_trainer.data.dataset_files import check_dataset
from kubetrain_trainer.data.sampling import Batch
from kubetrain_trainer.data.stream_plan import Plan
from kubetrain_trainer.errors import InvalidSetting, KubetrainError, Stopped
from kubetrain_trainer.failures import AT_THE_START, annotating_errors
from kubetrain_trainer.loop.schedule import is_finished
from kubetrain_trainer.loop.training import AnyTraining, Metrics
from kubetrain_trainer.output import output_store
from kubetrain_trainer.output.checkpoint_layout import (
    TrainingProgress,
    choose_checkpoint,
    open_checkpoint,
    remove_partial,
)
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.processes.watchdog import STORAGE_SECONDS, Watchdog
from kubetrain_trainer.reporting.time_spent import describe
from kubetrain_trainer.reporting.training_report import TrainingReport, total_steps
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.setting_warnings import training_warnings
from kubetrain_trainer.stop_signal import mark_as_saving_until_exit

AGroup = TypeVar("AGroup", bound=ProcessGroup)
ATraining = TypeVar("ATraining", bound=AnyTraining)
Loaded = TypeVar("Loaded")
Validate = Callable[[int], Metrics | None]
"""Returns the metrics after this step, or None if interrupted by a stop."""
log = logging.getLogger(__name__)


@contextlib.contextmanager
def recorded_run(framework: str, arguments: Arguments, role: ProcessRole) -> Iterator[None]:
    """Record that the run begins, and withdraw it if it is refused before its first step."""
    if role.local_rank == 0:
        check_dataset(arguments)
    if role.is_rank_0:
        arguments.output.begin(framework, arguments.config, arguments.dataset_digest)
    try:
        yield
    except KubetrainError as error:
        if role.is_rank_0 and not error.is_curable:
            arguments.output.withdraw()
        raise


def train_together(
    arguments: Arguments,
    group: AGroup,
    watchdog: Watchdog,
    build_training: Callable[[Arguments, AGroup, Watchdog], ATraining],
    run_epochs: Callable[[ATraining], None],
) -> None:
    """Train, resuming from the newest checkpoint if there is one, and export the chosen checkpoint as the model."""
    with annotating_errors(lambda: f"{AT_THE_START}, with train.batch_size={arguments.config.batch_size}"):
        watchdog.beat_start()
        training = build_training(arguments, group, watchdog)
    if group.role.is_rank_0:
        log.info(group.describe(arguments.config))
    with running(training):
        run_epochs(training)
    if group.role.is_rank_0:
        finish(training)


@contextlib.contextmanager
def running(training: AnyTraining) -> Iterator[None]:
    """Keep what helps the steps at work, and name the activity in errors."""
    training.watchdog.beat_first_step()
    with (
        _accounting_failures(training),
        training.writer,
        contextlib.closing(training.watchdog),
        training.stop,
        training.profile,
        annotating_errors(lambda: training.doing),
    ):
        yield
        with training.watchdog.paused():  # while SIGTERM is still only noted
            training.writer.wait()


@contextlib.contextmanager
def _accounting_failures(training: AnyTraining) -> Iterator[None]:
    """If the training fails, let rank 0 log what the time was spent on."""
    try:
        yield
    except Stopped:
        raise
    except Exception:
        if training.group.role.is_rank_0 and (account := describe(training.output.time_spent)):
            log.info(account)
        raise


def resume(training: AnyTraining, plan: Plan) -> tuple[TrainingProgress, int]:
    """Return where to resume, and the step of this run's newest checkpoint (-1: none, or it was not validated).

    Raises:
        InvalidSetting: if resume_from names a run that leaves this one nothing to train.
    """
    # Rank 0 reads and verifies a large checkpoint for as long as the storage needs.
    with training.watchdog.paused(math.inf if training.group.role.is_rank_0 else STORAGE_SECONDS):
        resumed = _resume(training, plan)
    training.replicas.check()
    return resumed


def _resume(training: AnyTraining, plan: Plan) -> tuple[TrainingProgress, int]:
    path = training.group.from_rank_0(lambda: find_checkpoint(training), takes_long=True)
    if path is None:
        return TrainingProgress(), -1
    log.info("rank %d resumes from %s", training.group.role.rank, path)
    output_store.begin(Path(path).parents[1])
    checkpoint = open_checkpoint(Path(path))
    progress, is_own = plan.resumed(checkpoint.progress), checkpoint.path.parent == training.output.checkpoints
    if not is_own:
        check_something_is_left(training.config, progress)
    training.restore(checkpoint)
    training.recent.loss_scale.restore(checkpoint.manifest)
    return progress, checkpoint.step if is_own and checkpoint.is_validated else -1


def find_checkpoint(training: AnyTraining) -> str | None:
    remove_partial(training.output.checkpoints)
    checkpoint = training.output.checkpoint_to_resume(training.config.resume_from)
    if checkpoint is None:
        return None
    if checkpoint.path.parent == training.output.checkpoints:
        training.writer.newest = checkpoint
    return str(checkpoint.path)


def check_something_is_left(config: TrainConfig, progress: TrainingProgress) -> None:
    if is_finished(config, progress):
        wanted = f"train.epochs above {progress.epoch}" if progress.epoch >= config.epochs else ""
        wanted = wanted or f"train.max_steps above {progress.step}, or set it to 0"
        raise InvalidSetting(
            f"train.resume_from: the run '{config.resume_from}' has already trained {progress.epoch} epochs "
            f"({progress.step} steps), which leaves nothing to train: raise {wanted}"
        )


def run_steps(
    training: AnyTraining,
    plan: Plan,
    resumed: tuple[TrainingProgress, int],
    steps: Iterable[tuple[Loaded, Batch]],
    take_step: Callable[[Loaded, Batch, int, float], bool],
    validate: Validate,
) -> None:
    """Take the remaining steps of the training.

    Args:
        resumed: What resume() returned.
        steps: What each step computes with, and its batch.
        take_step: Takes the step with this number and fraction of the peak learning rate. Returns False if it was
            skipped.
        validate: Returns the metrics after this step, or None if interrupted by a stop.
    """
    config, own_time, at_peak = training.config, training.own_time, training.seconds_at_peak
    progress, validated_step = resumed
    _warn_of_settings(training, plan, progress)
    report = TrainingReport(config, training.output, plan, training.group, progress, own_time, at_peak)
    for loaded, batch in own_time.loading(steps):
        progress = progress.after_step(batch.global_size, plan.size)  # progress.step is now this step's number
        training.profile.begin_step(progress.step)
        factor = training.rate_factor(progress, plan)
        is_taken = take_step(loaded, batch, progress.step, factor)
        if is_taken and training.averages:
            training.averages.update(progress.step)
        training.profile.end_step(progress.step)
        training.writer.check()
        own_time.end_step()
        report.window.count_step(batch.global_size)

        # All processes come to the same answers here, because reports and checkpoints are collective calls.
        stops = training.stop.is_due(progress.step)
        if progress.step % config.log_every == 0 or is_finished(config, progress) or stops:
            report.steps(progress, training.measures(), factor * training.peak_rate, training.recent.skipped)
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


def _warn_of_settings(training: AnyTraining, plan: Plan, progress: TrainingProgress) -> None:
    if training.group.role.is_rank_0:
        last_step = total_steps(training.config, plan, progress)
        for warning in training_warnings(training.config, training.task, last_step, training.peak_rate):
            log.warning(warning)


def may_save(training: AnyTraining, progress: TrainingProgress) -> bool:
    """Return True if the previous checkpoint is complete; until then a validation would be wasted."""
    return training.group.from_rank_0(lambda: training.writer.is_free(progress.step))


def save_checkpoint(
    training: AnyTraining,
    validate: Validate,
    progress: TrainingProgress,
    report: TrainingReport,
    validated_step: int,
) -> int:
    """Start writing a checkpoint, validated before if that is due, and return the step of the last validation."""
    training.recent.check()  # do not save the model if a loss was NaN
    report.book_steps(progress)
    is_first = validated_step < 0 and report.window.total_steps == progress.step
    with report.window.paused():
        training.replicas.check(first_steps=progress.step if is_first else 0)
        broadcast_all_statistics(training)
        is_validated = is_validation_due(training.config, progress, validated_step)
        metrics = _validated(training, validate, progress, report) if is_validated else {}
        began = time.perf_counter()
        save_state(training, progress, metrics)
        report.checkpoint(progress, metrics, stall_seconds=time.perf_counter() - began)
    return progress.step if is_validated else validated_step


def is_validation_due(config: TrainConfig, progress: TrainingProgress, validated_step: int) -> bool:
    is_first = validated_step < 0  # it shows what the settings and the task have wrong
    return is_first or is_finished(config, progress) or progress.step >= validated_step + config.validate_every


def _validated(
    training: AnyTraining, validate: Validate, progress: TrainingProgress, report: TrainingReport
) -> Metrics:
    metrics = validate(progress.step)
    if metrics is None:
        save_and_stop(training, progress, report)
    training.recent.check_validation(progress.step, metrics)
    return metrics


def save_and_stop(training: AnyTraining, progress: TrainingProgress, report: TrainingReport) -> NoReturn:
    """Save without validating, for which the time may be too short, and end every process when the save is complete."""
    mark_as_saving_until_exit()
    training.replicas.check()
    broadcast_all_statistics(training)
    save_state(training, progress, metrics={})
    with training.watchdog.paused():
        stopped = training.group.from_rank_0(training.writer.conclude_stop, takes_long=True)
        report.stop()
        raise Stopped(stopped)


def broadcast_all_statistics(training: AnyTraining) -> None:
    training.group.broadcast_statistics(training.task.model)
    if training.averages:
        training.group.broadcast_statistics(training.averages.model)


def save_state(training: AnyTraining, progress: TrainingProgress, metrics: Metrics) -> None:
    details = {"world_size": training.group.role.world_size, "metrics": metrics, **training.recent.loss_scale.details()}
    with training.watchdog.paused():
        training.save(progress, details)


def finish(training: AnyTraining) -> None:
    """Export the checkpoint that becomes the model and record that the training completed."""
    training.export(choose_checkpoint(training.output.checkpoints, training.config))
    group = training.group
    training.output.finish(training.writer.last(), network=group.network, preflight=group.preflight)
