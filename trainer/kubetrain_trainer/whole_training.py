"""A training from its beginning to its end, the same for every framework."""

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import TypeVar

from kubetrain_trainer.checkpoint_layout import choose_checkpoint
from kubetrain_trainer.dataset_files import check_no_file_is_lost
from kubetrain_trainer.entry_point import Arguments
from kubetrain_trainer.errors import KubetrainError, Stopped
from kubetrain_trainer.failures import AT_THE_START, annotating_errors
from kubetrain_trainer.lifecycle import AnyTraining
from kubetrain_trainer.process_group import ProcessGroup
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.time_spent import describe
from kubetrain_trainer.watchdog import Watchdog

AGroup = TypeVar("AGroup", bound=ProcessGroup)
ATraining = TypeVar("ATraining", bound=AnyTraining)
log = logging.getLogger(__name__)


@contextlib.contextmanager
def begun(framework: str, arguments: Arguments, role: ProcessRole) -> Iterator[None]:
    """Record that the run begins, and withdraw it if it is refused before its first step."""
    if role.local_rank == 0:
        check_no_file_is_lost(arguments.data_dir, arguments.dataset_files)
    if role.is_chief:
        arguments.output.begin(framework, arguments.config, arguments.dataset_digest)
    try:
        yield
    except KubetrainError as error:
        if role.is_chief and not error.is_curable:
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
    if group.role.is_chief:
        log.info(group.describe(arguments.config))
    with running(training):
        run_epochs(training)
    if group.role.is_chief:
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
    """If the training fails, let the chief log what the time was spent on."""
    try:
        yield
    except Stopped:
        raise
    except Exception:
        if training.group.role.is_chief and (account := describe(training.output.time_spent)):
            log.info(account)
        raise


def finish(training: AnyTraining) -> None:
    """Export the checkpoint that becomes the model and record that the training completed."""
    training.export(choose_checkpoint(training.output.checkpoints, training.config))
    group = training.group
    training.output.finish(training.writer.last(), network=group.network, preflight=group.preflight)
