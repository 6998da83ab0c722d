"""Retention of checkpoints: keep the newest few and the best."""

import logging
from collections.abc import Sequence

from kubetrain_trainer.checkpoint_layout import Checkpoint, best_first, complete_checkpoints, remove_checkpoint
from kubetrain_trainer.config import TrainConfig

log = logging.getLogger(__name__)


def remove_superseded(newest: Checkpoint, config: TrainConfig) -> None:
    """Remove the checkpoints that are no longer needed now that a newer one is flushed and verified.

    One that cannot be removed is left to the next call, because the newer one is complete.
    """
    for checkpoint in superseded(complete_checkpoints(newest.path.parent), newest, config):
        try:
            remove_checkpoint(checkpoint.path)
        except OSError as error:
            log.warning("cannot remove %s (%s): trying again after the next checkpoint", checkpoint.path, error)
        else:
            log.info("removed %s", checkpoint.name)


def superseded(complete: Sequence[Checkpoint], newest: Checkpoint, config: TrainConfig) -> list[Checkpoint]:
    """Return all checkpoints older than the newest `keep_checkpoints`, except the best.

    Checkpoints with a later step than the newest are ignored. They are damaged, because the training did not resume
    from them.
    """
    known = [checkpoint for checkpoint in complete if checkpoint.step <= newest.step]
    measured = [checkpoint for checkpoint in known if config.metric in checkpoint.manifest["metrics"]]
    kept = known[-config.keep_checkpoints :]
    if measured:
        kept.append(best_first(measured, config)[0])
    return [checkpoint for checkpoint in known if checkpoint not in kept]
