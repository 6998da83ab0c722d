"""Which checkpoints stay: the newest few, and the best."""

import logging
from collections.abc import Sequence

from kubetrain_trainer.checkpoint_layout import Checkpoint, by_merit, complete_checkpoints, remove_checkpoint
from kubetrain_trainer.config import TrainConfig

log = logging.getLogger(__name__)


def remove_superseded(newest: Checkpoint, config: TrainConfig) -> None:
    """Remove what a checkpoint just written, every byte of it flushed and read back, makes superfluous."""
    for checkpoint in superseded(complete_checkpoints(newest.path.parent), newest, config):
        remove_checkpoint(checkpoint.path)
        log.info("removed %s", checkpoint.name)


def superseded(complete: Sequence[Checkpoint], newest: Checkpoint, config: TrainConfig) -> list[Checkpoint]:
    """All that are older than the newest `keep_checkpoints`, but for the best.

    What lies beyond the newest is damaged, for the training did not resume from it: it neither counts nor is touched.
    """
    known = [checkpoint for checkpoint in complete if checkpoint.step <= newest.step]
    measured = [checkpoint for checkpoint in known if config.metric in checkpoint.manifest["metrics"]]
    kept = known[-config.keep_checkpoints :]
    if measured:
        kept.append(by_merit(measured, config)[0])
    return [checkpoint for checkpoint in known if checkpoint not in kept]
