"""Train with DistributedDataParallel.

python -m kubetrain_trainer.pytorch_ddp.launch --nproc-per-node 2 \
    -m kubetrain_trainer.pytorch_ddp.train --data-dir DATA --output-dir OUTPUT
"""

import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from kubetrain_trainer.allocator import keep_freed_memory
from kubetrain_trainer.checkpoint_layout import Progress, choose_checkpoint, open_checkpoint, remove_partial
from kubetrain_trainer.entry_point import Arguments, run, training_arguments
from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.failures import annotating_errors
from kubetrain_trainer.process_role import torchrun_role
from kubetrain_trainer.pytorch_ddp.checkpoint import export, restore, save
from kubetrain_trainer.pytorch_ddp.data import Loader, seed_generators
from kubetrain_trainer.pytorch_ddp.evaluate import mean_metrics
from kubetrain_trainer.pytorch_ddp.group import (
    describe_group,
    from_chief,
    gpu_memory_peak,
    process_group,
    share_statistics,
)
from kubetrain_trainer.pytorch_ddp.precision import precision_of
from kubetrain_trainer.pytorch_ddp.step import take_step
from kubetrain_trainer.pytorch_ddp.training import Training, build_training
from kubetrain_trainer.sampling import SamplePlan, derived_seed
from kubetrain_trainer.schedule import is_finished, learning_rate
from kubetrain_trainer.termination import report_result
from kubetrain_trainer.training_report import TrainingReport

log = logging.getLogger(__name__)


def train(arguments: Arguments) -> None:
    """Train to the end, from the newest checkpoint where there is one, and export the model that is chosen."""
    keep_freed_memory()
    output, role = arguments.output, torchrun_role()
    with process_group(arguments.config, role) as device:
        if role.is_chief:
            output.begin("pytorch", arguments.config, arguments.dataset_digest)
        if not from_chief(output.is_finished, role):
            with annotating_errors(lambda: f"at the start, with batch_size={arguments.config.batch_size}"):
                training = build_training(arguments, role, device)
            if role.is_chief:
                log.info(describe_group(role, device, precision_of(arguments.config, device)))
            with training.writer, training.watchdog, training.stop, annotating_errors(lambda: training.doing):
                run_epochs(training)
            if role.is_chief:
                finish(training)
    if role.is_chief:
        report_result(output.read_result() or {})


def run_epochs(training: Training) -> None:
    config, role = training.config, training.role
    loader = Loader(training.task.data("train"), config, role, training.device)
    validation = Loader(training.task.data(config.validation_split), config, role, training.device)
    resumed, saved_step = resume(training)
    plan = SamplePlan(size=loader.size, batch_size=config.batch_size, world_size=role.world_size, seed=config.seed)
    progress = plan.resumed(resumed)
    report = TrainingReport(
        config, training.output, plan, role, progress.step, gpu_memory_peak, training.sum_over_processes
    )

    while not is_finished(config, progress):
        shares = list(plan.batches(progress.epoch, role.rank, start=progress.samples_in_epoch))
        batches = loader.load([share.indices for share in shares], progress.epoch)
        for share, (inputs, targets) in zip(shares, report.window.waiting_for(batches), strict=True):
            seed_generators(derived_seed(config.seed, progress.step, role.rank), training.device)
            progress = progress.after_step(share.global_size, plan.size)
            epochs_done = plan.epochs_done(progress.epoch, progress.samples_in_epoch)
            rate = learning_rate(config, epochs_done, training.global_batch)
            is_taken = take_step(training, inputs, targets, share, progress.step, rate)
            if is_taken and training.averages:
                training.averages.update(progress.step)
            training.writer.check()
            report.window.count_step(share.global_size)

            stops = training.stop.is_due(progress.step)
            if progress.step % config.log_every == 0 or is_finished(config, progress) or stops:
                report.steps(progress, training.recent.mean_loss(), rate, training.recent.skipped)
            if stops:
                save_and_stop(training, progress)
            if progress.step % config.checkpoint_every == 0 and may_save(training, progress):
                saved_step = validate_and_save(training, validation, progress, report)
            if is_finished(config, progress):
                break
            training.watchdog.beat(f"step {progress.step + 1}")
    if saved_step != progress.step:
        validate_and_save(training, validation, progress, report)
    report.end()


def resume(training: Training) -> tuple[Progress, int]:
    """Where to go on, and the step of this run's newest checkpoint (-1: none, or one that was not validated)."""
    path = from_chief(lambda: find_checkpoint(training), training.role)
    if path is None:
        return Progress(), -1
    log.info("rank %d resumes from %s", training.role.rank, path)
    checkpoint = open_checkpoint(Path(path))
    restore(checkpoint, training.config, training.task.model, training.optimizer, training.averages, training.device)
    is_done = checkpoint.path.parent == training.output.checkpoints and checkpoint.is_validated
    return checkpoint.progress, checkpoint.step if is_done else -1


def find_checkpoint(training: Training) -> str | None:
    remove_partial(training.output.checkpoints)
    checkpoint = training.output.checkpoint_to_resume(training.config.resume_from)
    return str(checkpoint.path) if checkpoint else None


def may_save(training: Training, progress: Progress) -> bool:
    """Whether the checkpoint before is written; else all go on, rather than validate for nothing."""
    return from_chief(lambda: training.writer.is_free(progress.step), training.role)


def validate_and_save(training: Training, validation: Loader, progress: Progress, report: TrainingReport) -> int:
    """Evaluate on the validation split and have a checkpoint written that knows how it did; returns its step."""
    training.recent.look()  # what a bad step spoiled is not to be saved
    with report.window.paused():
        share_all_statistics(training)
        metrics = mean_metrics(training, validation, progress.step)
        if metrics is None:
            save_and_stop(training, progress)
        began = time.perf_counter()
        save_state(training, progress, metrics)
        report.checkpoint(progress, metrics, stall_seconds=time.perf_counter() - began)
    return progress.step


def share_all_statistics(training: Training) -> None:
    share_statistics(training.task.model, training.role)
    if training.averages:
        share_statistics(training.averages.model, training.role)


def save_state(training: Training, progress: Progress, metrics: Mapping[str, float]) -> None:
    if training.role.is_chief:
        details = {"world_size": training.role.world_size, "metrics": metrics}
        parts = (training.task.model, training.optimizer, training.averages)
        with training.watchdog.paused():
            save(training.writer, training.staging, progress, details, *parts)


def save_and_stop(training: Training, progress: Progress) -> NoReturn:
    """Save without validating, which could take longer than is left; every process ends when all is written."""
    share_all_statistics(training)
    save_state(training, progress, metrics={})
    with training.watchdog.paused():
        raise Stopped(from_chief(training.writer.conclude_stop, training.role))


def finish(training: Training) -> None:
    """Export the checkpoint that becomes the model, and record how far the training got."""
    output = training.output
    chosen = choose_checkpoint(output.checkpoints, training.config)
    export(output, chosen, {"classes": training.task.classes})
    output.finish()


if __name__ == "__main__":
    run(lambda: train(training_arguments("Train with PyTorch DistributedDataParallel.")))
