"""A training from its beginning to its end, the same for every framework."""

import contextlib
import logging
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from kubetrain_trainer.data.sampling import Batch
from kubetrain_trainer.data.stream_plan import Plan
from kubetrain_trainer.errors import KubetrainError, Stopped
from kubetrain_trainer.failures import AT_THE_START, annotating_errors
from kubetrain_trainer.loop.lifecycle import AnyTraining, Metrics, may_save, save_and_stop, save_checkpoint
from kubetrain_trainer.loop.schedule import is_finished
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress, choose_checkpoint
from kubetrain_trainer.processes.entry_point import Arguments, check_no_file_is_lost
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.processes.watchdog import Watchdog
from kubetrain_trainer.reporting.time_spent import describe
from kubetrain_trainer.reporting.training_report import TrainingReport, total_steps
from kubetrain_trainer.settings.remarks import remarks

AGroup = TypeVar("AGroup", bound=ProcessGroup)
ATraining = TypeVar("ATraining", bound=AnyTraining)
Loaded = TypeVar("Loaded")
log = logging.getLogger(__name__)


@contextlib.contextmanager
def begun(framework: str, arguments: Arguments, role: ProcessRole) -> Iterator[None]:
    """Record that the run begins, and withdraw it if it is refused before its first step."""
    if role.local_rank == 0:
        check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
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
    with annotating_errors(lambda: f"{AT_THE_START}, with batch_size={arguments.config.batch_size}"):
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


def finish(training: AnyTraining) -> None:
    """Export the checkpoint that becomes the model and record that the training completed."""
    training.export(choose_checkpoint(training.output.checkpoints, training.config))
    group = training.group
    training.output.finish(training.writer.last(), network=group.network, preflight=group.preflight)


def run_steps(
    training: AnyTraining,
    plan: Plan,
    resumed: tuple[TrainingProgress, int],
    steps: Iterable[tuple[Loaded, Batch]],
    take_step: Callable[[Loaded, Batch, int, float], bool],
    validate: Callable[[int], Metrics | None],
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
    _say_what_is_hardly_meant(training, plan, progress)
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


def _say_what_is_hardly_meant(training: AnyTraining, plan: Plan, progress: TrainingProgress) -> None:
    if training.group.role.is_rank_0:
        last_step = total_steps(training.config, plan, progress)
        for remark in remarks(training.config, training.task, last_step, training.peak_rate):
            log.warning(remark)
