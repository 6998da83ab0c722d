"""The objects of a training that its loop uses, the same for every framework."""

import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kubetrain_trainer.data.image_folder import log_notes
from kubetrain_trainer.data.stream_plan import Plan
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.loop.recent_steps import RecentSteps
from kubetrain_trainer.loop.same_everywhere import Replicas
from kubetrain_trainer.loop.schedule import rate_factor
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.processes.watchdog import Watchdog
from kubetrain_trainer.reporting.own_time import OwnTime
from kubetrain_trainer.reporting.profile import Profile
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.setting_warnings import own_data_warnings

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
    seconds_at_peak: float = 0.0
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
        return f"in {self.watchdog.doing}, with train.batch_size={self.config.batch_size}"


def splits(task: Any, config: TrainConfig, group: ProcessGroup) -> tuple[Any, Any]:
    """Return the samples to train on and those to validate with."""
    training = task.training_data() if task.training_data else task.data("train")
    validation = task.data(config.validation_split)
    if group.role.is_rank_0:
        warn_of_unused_settings(config)
        for samples in (training, validation):
            log_notes(samples)
    return training, validation


def warn_of_unused_settings(config: TrainConfig) -> None:
    for warning in own_data_warnings(config):
        log.warning(warning)
