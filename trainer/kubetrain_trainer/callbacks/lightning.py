"""PyTorch Lightning in a session: trainer.fit() saves, resumes, reports and stops as kubetrain's trainers do.

    callback = SessionCallback()
    trainer = Trainer(strategy="ddp", **processes(), callbacks=[callback], logger=False, enable_checkpointing=False)
    trainer.fit(model, data, ckpt_path=callback.resume(trainer), weights_only=True)
    session.finish(lambda folder: torch.save(model.state_dict(), folder / "model.pt"), trainer.callback_metrics)

Without logger=False and enable_checkpointing=False, Lightning writes files of its own into the working directory.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.loggers import Logger

from kubetrain_trainer import session

FILE = "lightning.ckpt"


def processes() -> dict[str, Any]:
    """Return the arguments of Trainer for the processes that torchrun has started; without it, Lightning chooses."""
    devices, nodes = os.environ.get("LOCAL_WORLD_SIZE"), os.environ.get("GROUP_WORLD_SIZE", "1")
    return {"devices": int(devices) if devices else "auto", "num_nodes": int(nodes)}


class SessionCallback(Callback):
    """Saves after each validation, after each `every_n_steps` if given, and when the training has to stop."""

    def __init__(self, every_n_steps: int = 0) -> None:
        self._every_n_steps = every_n_steps
        self._saved_step = 0

    def resume(self, trainer: Trainer) -> Path | None:
        """Return the newest checkpoint for fit(), the same in every process, or None at the beginning of a training."""
        trainer.strategy.setup_environment()  # the processes meet here, and not only in fit()
        checkpoint = session.resume()
        return checkpoint.path / FILE if checkpoint else None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if not any(isinstance(logger, SessionLogger) for logger in trainer.loggers):
            trainer.loggers = [*trainer.loggers, SessionLogger(trainer)]

    def on_sanity_check_start(self, *_: object) -> None:
        session.should_stop()  # handles SIGTERM from here on: Lightning's handler hangs if only one process gets it

    def on_train_start(self, *_: object) -> None:
        session.should_stop()  # a training may have no sanity check

    def on_train_batch_end(self, trainer: Trainer, *_: object) -> None:
        is_due = self._every_n_steps and trainer.global_step % self._every_n_steps == 0
        if session.should_stop() or (is_due and trainer.global_step != self._saved_step):
            self._save(trainer, {})

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self._save(trainer, trainer.callback_metrics)

    def _save(self, trainer: Trainer, metrics: Mapping[str, Any]) -> None:
        self._saved_step = trainer.global_step
        session.save(
            trainer.global_step,
            lambda folder: trainer.save_checkpoint(folder / FILE, weights_only=False),
            metrics,
            collective=True,
        )


class SessionLogger(Logger):
    """Receives what a module logs. For means over all processes, log with sync_dist=True."""

    name, version = "kubetrain", ""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = trainer

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        session.log(self._trainer.global_step, **metrics)

    def log_hyperparams(self, *_: object, **__: object) -> None:
        pass
