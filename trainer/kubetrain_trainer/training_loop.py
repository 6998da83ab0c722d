"""The steps of a training, and what follows each of them, in the same order for every framework."""

import logging
from collections.abc import Callable, Iterable
from typing import TypeVar

from kubetrain_trainer.checkpoint_layout import TrainingProgress
from kubetrain_trainer.lifecycle import AnyTraining, Metrics, may_save, save_and_stop, save_checkpoint
from kubetrain_trainer.remarks import remarks
from kubetrain_trainer.sampling import Batch
from kubetrain_trainer.schedule import is_finished
from kubetrain_trainer.stream_plan import Plan
from kubetrain_trainer.training_report import TrainingReport, total_steps

Loaded = TypeVar("Loaded")
log = logging.getLogger(__name__)


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
    if training.group.role.is_chief:
        last_step = total_steps(training.config, plan, progress)
        for remark in remarks(training.config, training.task, last_step, training.peak_rate):
            log.warning(remark)
