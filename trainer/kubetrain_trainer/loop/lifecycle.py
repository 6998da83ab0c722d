"""The work of a training around its steps, the same for every framework: resume, validate, save and stop.

All processes call these functions at the same step.
"""

import logging
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from kubetrain_trainer.data.image_folder import log_notes
from kubetrain_trainer.data.stream_plan import Plan
from kubetrain_trainer.errors import InvalidSetting, KubetrainError, Stopped
from kubetrain_trainer.loop.recent_steps import RecentSteps
from kubetrain_trainer.loop.same_everywhere import Replicas
from kubetrain_trainer.loop.schedule import is_finished, rate_factor
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress, open_checkpoint, remove_partial
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.processes.watchdog import STORAGE_SECONDS, Watchdog
from kubetrain_trainer.reporting.own_time import OwnTime
from kubetrain_trainer.reporting.profile import Profile
from kubetrain_trainer.reporting.training_report import TrainingReport
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.remarks import remarks_on_own_data
from kubetrain_trainer.stop_signal import mark_as_saving_until_exit

log = logging.getLogger(__name__)

Metrics = Mapping[str, float]


@dataclass(frozen=True, kw_only=True)
class AnyTraining(ABC):
    """The parts of a training that these functions use. Each framework's `Training` adds those that its steps use."""

    config: TrainConfig
    output: TrainingOutput
    group: ProcessGroup
    task: Any
    averages: Any
    """The moving averages of the task's weights, or None."""
    writer: CheckpointWriter
    recent: RecentSteps
    replicas: Replicas
    watchdog: Watchdog
    stop: Any
    """A context manager that hears SIGTERM."""
    profile: Profile
    own_time: OwnTime
    peak_rate: float
    seconds_at_peak: float
    """The time that all GPUs together need for a sample at least; 0: unknown."""

    @property
    def evaluated(self) -> Any:
        """The task to validate, with the averaged weights if `ema_decay` is set."""
        return replace(self.task, model=self.averages.model) if self.averages else self.task

    @abstractmethod
    def restore(self, checkpoint: Checkpoint) -> None:
        """Load the checkpoint's state into the model, the optimizer and the averages."""

    @abstractmethod
    def save(self, progress: TrainingProgress, details: Mapping[str, Any]) -> None:
        """Copy this state and let rank 0's writer write it while the next steps run."""

    @abstractmethod
    def export(self, checkpoint: Checkpoint) -> None:
        """Write the checkpoint's weights, as they were validated, for use without this trainer."""

    def rate_factor(self, progress: TrainingProgress, plan: Plan) -> float:
        """Return the fraction of the peak learning rate for the step that leads to this progress."""
        schedule = self.task.schedule
        done = plan.epochs_done(progress.epoch, progress.samples_in_epoch)
        factor = schedule(progress.step) if schedule else rate_factor(self.config, progress.step, done)
        if not math.isfinite(factor):
            raise KubetrainError(
                f"schedule({progress.step}) returned {factor}: return a finite factor of the peak learning rate"
            )
        return float(factor)

    def measures(self) -> dict[str, float]:
        """Return what was measured in the steps since the last call."""
        return self.recent.means()

    @property
    def doing(self) -> str:
        """The current activity, for error messages."""
        return f"in {self.watchdog.doing}, with batch_size={self.config.batch_size}"


def splits(task: Any, config: TrainConfig, group: ProcessGroup) -> tuple[Any, Any]:
    """Return the samples to train on and those to validate with."""
    training = task.training_data() if task.training_data else task.data("train")
    samples = training, task.data(config.validation_split)
    if group.role.is_rank_0:
        say_what_only_own_data_can_use(config)
        for each in samples:
            log_notes(each)
    return samples


def say_what_only_own_data_can_use(config: TrainConfig) -> None:
    for remark in remarks_on_own_data(config):
        log.warning(remark)


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
    checkpoint = open_checkpoint(Path(path))
    progress, is_own = plan.resumed(checkpoint.progress), checkpoint.path.parent == training.output.checkpoints
    if not is_own:
        check_something_is_left(training.config, progress)
    training.restore(checkpoint)
    training.recent.loss_scale.restore(checkpoint.manifest)
    return progress, checkpoint.step if is_own and checkpoint.is_validated else -1


def check_something_is_left(config: TrainConfig, progress: TrainingProgress) -> None:
    if is_finished(config, progress):
        wanted = f"epochs above {progress.epoch}" if progress.epoch >= config.epochs else ""
        wanted = wanted or f"max_steps above {progress.step}, or set it to 0"
        raise InvalidSetting(
            f"resume_from: the run '{config.resume_from}' has already trained {progress.epoch} epochs "
            f"({progress.step} steps), which leaves nothing to train: raise {wanted}"
        )


def find_checkpoint(training: AnyTraining) -> str | None:
    remove_partial(training.output.checkpoints)
    checkpoint = training.output.checkpoint_to_resume(training.config.resume_from)
    if checkpoint is None:
        return None
    if checkpoint.path.parent == training.output.checkpoints:
        training.writer.newest = checkpoint
    return str(checkpoint.path)


def may_save(training: AnyTraining, progress: TrainingProgress) -> bool:
    """Return True if the previous checkpoint is complete; until then a validation would be wasted."""
    return training.group.from_rank_0(lambda: training.writer.is_free(progress.step))


def save_checkpoint(
    training: AnyTraining,
    validate: Callable[[int], Metrics | None],
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
    training: AnyTraining, validate: Callable[[int], Metrics | None], progress: TrainingProgress, report: TrainingReport
) -> Metrics:
    metrics = validate(progress.step)
    if metrics is None:
        save_and_stop(training, progress, report)
    training.recent.check_validation(progress.step, metrics)
    return metrics


def broadcast_all_statistics(training: AnyTraining) -> None:
    training.group.broadcast_statistics(training.task.model)
    if training.averages:
        training.group.broadcast_statistics(training.averages.model)


def save_state(training: AnyTraining, progress: TrainingProgress, metrics: Metrics) -> None:
    details = {"world_size": training.group.role.world_size, "metrics": metrics, **training.recent.loss_scale.details()}
    with training.watchdog.paused():
        training.save(progress, details)


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
