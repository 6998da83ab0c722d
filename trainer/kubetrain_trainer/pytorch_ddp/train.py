"""Train with DistributedDataParallel.

torchrun --nproc-per-node 2 -m kubetrain_trainer.pytorch_ddp.train --data-dir DATA --output-dir OUTPUT
"""

import contextlib
import logging
import time
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from kubetrain_trainer.allocator import keep_freed_memory
from kubetrain_trainer.checkpoint_layout import Progress, choose_checkpoint, open_checkpoint, remove_partial
from kubetrain_trainer.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.entry_point import Arguments, run, training_arguments
from kubetrain_trainer.failures import telling
from kubetrain_trainer.model_names import is_import_path
from kubetrain_trainer.process_role import ProcessRole, torchrun_role
from kubetrain_trainer.pytorch_ddp.averaging import Averages
from kubetrain_trainer.pytorch_ddp.checkpoint import export, restore, save
from kubetrain_trainer.pytorch_ddp.data import Loader, seed_generators, split
from kubetrain_trainer.pytorch_ddp.evaluate import mean_metrics
from kubetrain_trainer.pytorch_ddp.group import (
    describe_group,
    from_chief,
    gpu_memory_peak,
    process_group,
    read_numbers,
    share_statistics,
    sum_over_processes,
)
from kubetrain_trainer.pytorch_ddp.precision import answer, precision_of
from kubetrain_trainer.pytorch_ddp.staging import Staging
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.recent_steps import RecentSteps
from kubetrain_trainer.sampling import Batch, SamplePlan, derived_seed
from kubetrain_trainer.schedule import learning_rate
from kubetrain_trainer.termination import report_result
from kubetrain_trainer.training_output import TrainingOutput
from kubetrain_trainer.training_report import TrainingReport
from kubetrain_trainer.watchdog import Watchdog

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class Training:
    """All that the loop works with; what changes is in the model, the optimizer and the progress."""

    config: TrainConfig
    output: TrainingOutput
    role: ProcessRole
    device: torch.device
    task: Task
    model: nn.Module
    """The task's model, its gradients averaged over all processes."""
    optimizer: torch.optim.Optimizer
    averages: Averages | None
    writer: CheckpointWriter
    staging: Staging
    recent: RecentSteps
    watchdog: Watchdog

    @property
    def judged(self) -> Task:
        """The task as it is validated: with the averaged weights, where they are kept."""
        return replace(self.task, model=self.averages.model) if self.averages else self.task

    @property
    def global_batch(self) -> int:
        return self.config.batch_size * self.role.world_size


def train(arguments: Arguments) -> None:
    """Train to the end, from the newest checkpoint where there is one, and export the model that is chosen."""
    keep_freed_memory()
    output, role = arguments.output, torchrun_role()
    with process_group(arguments.config, role) as device:
        if role.is_chief:
            output.begin("pytorch", arguments.config, arguments.dataset_digest)
        if not from_chief(output.is_finished, role):
            with telling(lambda: f"at the start, with batch_size={arguments.config.batch_size}"):
                training = build_training(arguments, role, device)
            if role.is_chief:
                log.info(describe_group(role, device, precision_of(arguments.config, device)))
            with training.writer, training.watchdog, telling(lambda: doing(training)):
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
    report = TrainingReport(config, training.output, plan, role, progress.step, gpu_memory_peak)

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

            if progress.step % config.log_every == 0 or is_finished(config, progress):
                report.steps(progress, training.recent.mean_loss(), rate, training.recent.skipped)
            if progress.step % config.checkpoint_every == 0 and may_save(training, progress):
                saved_step = validate_and_save(training, validation, progress, report)
            if is_finished(config, progress):
                break
            training.watchdog.beat(f"step {progress.step + 1}")
    if saved_step != progress.step:
        validate_and_save(training, validation, progress, report)
    report.end()


def doing(training: Training) -> str:
    return f"in {training.watchdog.doing}, with batch_size={training.config.batch_size}"


def build_training(arguments: Arguments, role: ProcessRole, device: torch.device) -> Training:
    config = arguments.config
    torch.manual_seed(config.seed)  # the same first weights in every process
    task = build_task(config, arguments.data_dir)
    config.check_metric(task.metrics)
    task.model.to(device)
    if not is_import_path(config.model):
        task.model.to(memory_format=torch.channels_last)  # a model of one's own may not bear it
    averages = Averages(config, task.model) if config.ema_decay else None
    writer = CheckpointWriter(arguments.output, config)
    return Training(
        config=config,
        output=arguments.output,
        role=role,
        device=device,
        task=task,
        model=trained_together(config, task.model, role, device),
        optimizer=build_optimizer(config, task.model),
        averages=averages,
        writer=writer,
        staging=Staging(),
        recent=RecentSteps(
            config,
            role,
            read_numbers,
            lambda values: sum_over_processes(values, role, device),
            lambda: from_chief(writer.way_on, role),
        ),
        watchdog=Watchdog(config, role),
    )


def trained_together(config: TrainConfig, model: nn.Module, role: ProcessRole, device: torch.device) -> nn.Module:
    """The model, its gradients averaged over all processes."""
    if config.compile:
        model.compile()
    if role.world_size == 1:
        return model
    is_known = not is_import_path(config.model)  # its graph and its buffers too
    return DistributedDataParallel(
        model,
        device_ids=[device] if device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=is_known and config.accumulate == 1,
        forward_sync_buffers=not is_known,  # they are shared when they are used: share_statistics
    )


def build_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
    )


def resume(training: Training) -> tuple[Progress, int]:
    """Where to go on, and the step of this run's newest checkpoint (-1: none)."""
    path = from_chief(lambda: find_checkpoint(training), training.role)
    if path is None:
        return Progress(), -1
    log.info("rank %d resumes from %s", training.role.rank, path)
    checkpoint = open_checkpoint(Path(path))
    restore(checkpoint, training.config, training.task.model, training.optimizer, training.averages, training.device)
    return checkpoint.progress, checkpoint.step if checkpoint.path.parent == training.output.checkpoints else -1


def find_checkpoint(training: Training) -> str | None:
    remove_partial(training.output.checkpoints)
    checkpoint = training.output.checkpoint_to_resume(training.config.resume_from)
    return str(checkpoint.path) if checkpoint else None


def is_finished(config: TrainConfig, progress: Progress) -> bool:
    return progress.epoch >= config.epochs or (config.max_steps > 0 and progress.step >= config.max_steps)


def take_step(training: Training, inputs: object, targets: object, share: Batch, step: int, rate: float) -> bool:
    """One step of all processes together; whether it was taken, rather than skipped."""
    for group in training.optimizer.param_groups:
        group["lr"] = rate
    training.optimizer.zero_grad(set_to_none=True)
    statistics = keep_statistics(training)
    loss = add_gradients(training, inputs, targets, share)
    is_taken = training.recent.may_change(step, rate, loss, clip_gradients(training))
    if is_taken:
        training.optimizer.step()
    else:
        restore_statistics(training, statistics)
    return is_taken


def clip_gradients(training: Training) -> Tensor:
    """The norm of the gradient of all processes, before it is clipped."""
    parameters = list(training.model.parameters())
    if training.config.clip_norm:
        return nn.utils.clip_grad_norm_(parameters, training.config.clip_norm)
    return nn.utils.get_total_norm([each.grad for each in parameters if each.grad is not None])


def keep_statistics(training: Training) -> list[Tensor]:
    """What a step changes before it is known whether it is to be skipped: running statistics."""
    return [buffer.clone() for buffer in training.task.model.buffers()] if training.config.on_nan == "skip" else []


def restore_statistics(training: Training, statistics: list[Tensor]) -> None:
    for buffer, before in zip(training.task.model.buffers(), statistics, strict=True):
        buffer.copy_(before)


def add_gradients(training: Training, inputs: object, targets: object, share: Batch) -> Tensor:
    """The gradient of the mean over all samples, in parts; the processes exchange theirs once, with the last part."""
    weight = share.weight(training.role.world_size)
    *parts, last = split([inputs, targets], share.parts(training.config.accumulate, training.role.world_size))
    with getattr(training.model, "no_sync", contextlib.nullcontext)():
        losses = [add_gradient(training, weight, *part) for part in parts]
    return sum(losses, start=add_gradient(training, weight, *last))


def add_gradient(training: Training, weight: float, inputs: object, targets: object) -> Tensor:
    outputs = answer(training.model, inputs, training.config, training.device)
    losses = (training.task.training_loss or training.task.loss)(outputs, targets)
    loss = losses.sum() * weight
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.detach()


def may_save(training: Training, progress: Progress) -> bool:
    """Whether the checkpoint before is written; else all go on, rather than validate for nothing."""
    return from_chief(lambda: training.writer.is_free(progress.step), training.role)


def validate_and_save(training: Training, validation: Loader, progress: Progress, report: TrainingReport) -> int:
    """Evaluate on the validation split and have a checkpoint written that knows how it did; returns its step."""
    config, role, task = training.config, training.role, training.task
    training.recent.look()  # what a bad step spoiled is not to be saved
    with report.window.paused():
        share_statistics(task.model, role)
        if training.averages:
            share_statistics(training.averages.model, role)
        beat = partial(training.watchdog.beat, f"the validation after step {progress.step}")
        metrics = mean_metrics(training.judged, validation, config, role, training.device, beat)
        began = time.perf_counter()
        if role.is_chief:
            details = {"world_size": role.world_size, "metrics": metrics}
            parts = (task.model, training.optimizer, training.averages)
            with training.watchdog.paused():
                save(training.writer, training.staging, progress, details, *parts)
        report.checkpoint(progress, metrics, stall_seconds=time.perf_counter() - began)
    return progress.step


def finish(training: Training) -> None:
    """Export the checkpoint that becomes the model, and record how far the training got."""
    output = training.output
    chosen = choose_checkpoint(output.checkpoints, training.config)
    export(output, chosen, {"classes": training.task.classes})
    output.finish()


if __name__ == "__main__":
    run(lambda: train(training_arguments("Train with PyTorch DistributedDataParallel.")))
