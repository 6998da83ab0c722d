"""What the chief says while it trains: metrics.jsonl for later readers, progress lines for whoever follows the log."""

from collections.abc import Mapping

from kubetrain_trainer.checkpoint_layout import Progress
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.metrics_log import MetricsLog
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.progress_line import format_progress
from kubetrain_trainer.sampling import SamplePlan
from kubetrain_trainer.step_window import StepWindow
from kubetrain_trainer.training_output import TrainingOutput


class TrainingReport:
    """Every process measures; only the chief speaks."""

    def __init__(
        self, config: TrainConfig, output: TrainingOutput, plan: SamplePlan, role: ProcessRole, resumed_step: int
    ) -> None:
        self.window = StepWindow()
        steps = config.epochs * plan.steps_per_epoch
        self._total_steps = min(steps, config.max_steps) if config.max_steps else steps
        self._metrics = MetricsLog(output.metrics, resumed_step) if role.is_chief else None

    def steps(self, progress: Progress, loss: float, rate: float) -> None:
        """The steps since the last report: their mean loss, how fast they were; a new window begins."""
        rates = self.window.rates()
        self.window.restart()
        if self._metrics is None:
            return
        row = {"step": progress.step, "epoch": progress.epoch, "loss": loss, "learning_rate": rate, **rates}
        self._metrics.append(row)
        print(format_progress(**{**row, "step": f"{progress.step}/{self._total_steps}"}), flush=True)

    def validation(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        if self._metrics is not None:
            row = {f"validation_{metric}": value for metric, value in metrics.items()}
            self._metrics.append({"step": progress.step, "epoch": progress.epoch, **row})
