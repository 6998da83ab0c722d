"""Rank 0's reports: metrics.jsonl, TensorBoard files, MLflow, Prometheus metrics and progress lines."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from kubetrain_trainer.data.shard_groups import ShardGroups
from kubetrain_trainer.data.stream_plan import Plan
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_group import ProcessGroup
from kubetrain_trainer.processes.resources import node_name
from kubetrain_trainer.reporting.event_file import EventFile
from kubetrain_trainer.reporting.metrics_log import MetricsLog
from kubetrain_trainer.reporting.metrics_page import MetricsPage, serve_metrics
from kubetrain_trainer.reporting.mlflow_log import log_to_mlflow
from kubetrain_trainer.reporting.own_time import LARGE_WAIT_SHARE, SHORTER_WAITS, OwnTime, StepTimes
from kubetrain_trainer.reporting.progress_line import format_progress
from kubetrain_trainer.reporting.step_window import StepWindow
from kubetrain_trainer.reporting.stragglers import Delay, Stragglers, delays, idle_share
from kubetrain_trainer.reporting.time_spent import (
    CHECKPOINT,
    DATA_WAIT,
    STRAGGLER,
    VALIDATION,
    WRITE_SECONDS,
    TimeSpent,
)
from kubetrain_trainer.settings.config import TrainConfig

SETTLED_SECONDS, MEANINGFUL_SECONDS = 60, 10
"""The minimum training time for a warning about waiting for data, during the training and at its end. Before that,
startup dominates."""
log = logging.getLogger(__name__)


class TrainingReport:
    """Measurements of all processes, reported by rank 0."""

    def __init__(
        self,
        config: TrainConfig,
        output: TrainingOutput,
        plan: Plan,
        group: ProcessGroup,
        resumed: TrainingProgress,
        own_time: OwnTime,
        seconds_at_peak: float = 0.0,
    ) -> None:
        """
        Args:
            seconds_at_peak: The time that all GPUs together need for a sample at least; 0: unknown.
        """
        self.window = StepWindow()
        self._total_steps = total_steps(config, plan, resumed)
        self._group = group
        self._own_time = own_time
        self._nodes = group.gather_text(node_name())
        self._stragglers = Stragglers(self._nodes)
        groups: ShardGroups | None = getattr(plan, "groups", None)
        self._cache = groups.cached.cache if groups else None
        self._seconds_at_peak = seconds_at_peak
        self._waited, self._seconds = 0.0, 0.0
        self._has_warned = False
        if not group.role.is_rank_0:
            return
        self._events = EventFile(output.tensorboard, resumed.step)
        self._metrics = MetricsLog(output.metrics, resumed.step)
        self._page = MetricsPage(output.path.name, group.role.world_size, self._events.restarts)
        log_to_mlflow(config, output)
        self._time = TimeSpent(output.time_spent, resumed.step)
        self._page.show_time(self._time.totals())
        if config.metrics_port:
            serve_metrics(config.metrics_port, self._page.text)

    def steps(self, progress: TrainingProgress, means: Mapping[str, float], rate: float, skipped: int = 0) -> None:
        """Report the steps since the last report, and start a new window.

        Args:
            means: The means of these steps, by name, and other measurements of them.
            rate: The current learning rate.
            skipped: The number of steps skipped since this process started.
        """
        samples_per_second = self.window.samples_per_second
        times = [StepTimes(*numbers) for numbers in self._group.gather_all(self._own_time.read())]
        wait_share = max(process.data_share for process in times)  # all wait for the one that waits longest for data
        seconds_left = self.window.seconds_for(self._total_steps - progress.step)
        seconds = self.window.seconds
        waited = wait_share * seconds
        self._waited += waited
        self._seconds += seconds
        self.window.restart()
        if not self._group.role.is_rank_0:
            return
        row: dict[str, Any] = {"step": progress.step, "epoch": progress.epoch, **means, "learning_rate": rate}
        row |= {"samples_per_second": samples_per_second, "data_wait_share": round(wait_share, 4)}
        if peak := self._group.gpu_memory_peak():
            row["gpu_memory_peak_bytes"] = peak
            row["samples_per_second_per_gpu"] = round(samples_per_second / self._group.devices, 2)
        if self._seconds_at_peak:
            row["mfu"] = float(f"{samples_per_second * self._seconds_at_peak:.4g}")
        if self._cache:
            row |= self._cache.counts()
        if skipped:
            row["skipped_steps"] = skipped
        found = delays(times, self._nodes)
        row |= self._shares(times, found)
        self._log(row, self._stragglers.named())
        self._page.show_steps(row, self.window, self._stragglers.named())
        self.book_steps(progress)
        self._time.book_waits({DATA_WAIT: waited, STRAGGLER: self._stragglers.lost_seconds(found, times)})
        self._write_time(WRITE_SECONDS)
        shown = {"seconds_left": seconds_left, "checkpoint_age_seconds": self._page.checkpoint_age}
        print(format_progress(**{**row, "step": f"{progress.step}/{self._total_steps}", **shown}), flush=True)
        if not self._has_warned and self.window.total_seconds >= SETTLED_SECONDS:
            self._warn_of_waiting()

    def book_steps(self, progress: TrainingProgress) -> None:
        """Book the time since the last report or checkpoint to the steps since then."""
        if self._group.role.is_rank_0:
            self._time.book_steps(progress.step, self.window.seconds_since_first_step)

    def checkpoint(self, progress: TrainingProgress, metrics: Mapping[str, float], stall_seconds: float) -> None:
        """Report a checkpoint, and how long the training waited for it, excluding the validation."""
        if not self._group.role.is_rank_0:
            return
        row: dict[str, Any] = {f"validation_{metric}": value for metric, value in metrics.items()}
        self._log({"step": progress.step, "epoch": progress.epoch, **row, "checkpoint_stall_seconds": stall_seconds})
        self._page.show_checkpoint(metrics, stall_seconds)
        self._time.book(CHECKPOINT, stall_seconds)
        self._time.book(VALIDATION if metrics else CHECKPOINT)
        self._write_time()

    def end(self) -> None:
        """Warn at the end of the training if it waited for data."""
        if self._group.role.is_rank_0 and self.window.total_seconds >= MEANINGFUL_SECONDS:
            self._warn_of_waiting()

    def stop(self) -> None:
        """Write what the time was spent on until this stop, or its end would be time in which nothing ran."""
        if self._group.role.is_rank_0:
            self._time.book(CHECKPOINT)
            self._write_time()

    def _write_time(self, min_seconds: float = 0.0) -> None:
        # The page shows no more than was written, so that its counters never decrease when the training is killed.
        if self._time.write(min_seconds):
            self._page.show_time(self._time.totals())

    def _shares(self, times: Sequence[StepTimes], found: Sequence[Delay]) -> dict[str, float]:
        """Return what processes lose by waiting, and judge which of them is slow."""
        if len(times) == 1:
            return {"idle_share": idle_share(times)}
        self._stragglers.note(times)
        slowest = max((delay.share for delay in found), default=0.0)
        return {"idle_share": idle_share(times), "straggler_delay_share": round(slowest, 4)}

    def _log(self, row: dict[str, Any], stragglers: Sequence[Mapping[str, Any]] = ()) -> None:
        self._metrics.append({**row, "stragglers": stragglers} if stragglers else row)
        self._events.append(row)

    def _warn_of_waiting(self) -> None:
        self._has_warned = True
        share = self._waited / self._seconds if self._seconds else 0.0
        if share >= LARGE_WAIT_SHARE:
            log.warning(describe_waiting(share))


def total_steps(config: TrainConfig, plan: Plan, resumed: TrainingProgress) -> int:
    """Return the number of the last step. Those before were perhaps taken by another number of processes."""
    epochs_left = config.epochs - resumed.epoch
    in_epoch = plan.steps_from(resumed.samples_in_epoch) if epochs_left else 0
    last = resumed.step + in_epoch + max(epochs_left - 1, 0) * plan.steps_per_epoch
    return min(last, config.max_steps) if config.max_steps else last


def describe_waiting(share: float) -> str:
    return f"the training waits for data {share:.0%} of the time: {SHORTER_WAITS}"
