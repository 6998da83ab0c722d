"""The objects that the training loop uses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kubetrain_trainer.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.entry_point import Arguments
from kubetrain_trainer.lifecycle import AnyTraining
from kubetrain_trainer.model_names import is_import_path
from kubetrain_trainer.pytorch_ddp.averaging import Averages
from kubetrain_trainer.pytorch_ddp.checkpoint import export, restore, save
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.staging import Staging
from kubetrain_trainer.pytorch_ddp.stopping import Stop
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.recent_steps import RecentSteps
from kubetrain_trainer.watchdog import Watchdog


@dataclass(frozen=True, kw_only=True)
class Training(AnyTraining):
    group: Group
    task: Task
    model: nn.Module
    """The task's model, wrapped to average its gradients over all processes."""
    optimizer: torch.optim.Optimizer
    averages: Averages | None
    staging: Staging
    stop: Stop

    @property
    def evaluated(self) -> Task:
        """The task to validate, with the averaged weights if `ema_decay` is set."""
        return replace(self.task, model=self.averages.model) if self.averages else self.task

    def restore(self, checkpoint: Checkpoint) -> None:
        restore(checkpoint, self.config, self.task.model, self.optimizer, self.averages, self.group.device)

    def save(self, progress: TrainingProgress, details: Mapping[str, Any]) -> None:
        if self.group.role.is_chief:
            save(self.writer, self.staging, progress, details, self.task.model, self.optimizer, self.averages)

    def export(self, checkpoint: Checkpoint) -> None:
        export(self.output, checkpoint, {"classes": self.task.classes})


def build_training(arguments: Arguments, group: Group) -> Training:
    config = arguments.config
    torch.manual_seed(config.seed)  # the same initial weights in every process
    task = build_task(config, arguments.data_dir)
    config.check_metric(task.metrics)
    task.model.to(group.device)
    if not is_import_path(config.model):
        task.model.to(memory_format=torch.channels_last)  # a custom model may not support it
    averages = Averages(config, task.model) if config.ema_decay else None
    writer = CheckpointWriter(arguments.output, config)
    return Training(
        config=config,
        output=arguments.output,
        group=group,
        task=task,
        model=data_parallel(config, task.model, group),
        optimizer=build_optimizer(config, task.model),
        averages=averages,
        writer=writer,
        staging=Staging(),
        recent=RecentSteps(config, group, writer.resume_hint),
        watchdog=Watchdog(config, group.role, on_gpu=group.device.type == "cuda"),
        stop=Stop(group.role),
    )


def data_parallel(config: TrainConfig, model: nn.Module, group: Group) -> nn.Module:
    """Wrap the model to average its gradients over all processes, and compile it if `compile` is set."""
    if config.compile:
        model.compile()
    if group.role.world_size == 1:
        return model
    is_built_in = not is_import_path(config.model)  # its graph never changes, and its buffers are only statistics
    return DistributedDataParallel(
        model,
        device_ids=[group.device] if group.device.type == "cuda" else None,
        gradient_as_bucket_view=True,
        static_graph=is_built_in and config.accumulate == 1,
        forward_sync_buffers=not is_built_in,  # broadcast_statistics() does this only when needed
    )


def build_optimizer(config: TrainConfig, model: nn.Module) -> torch.optim.Optimizer:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if config.optimizer == "adamw":
        return torch.optim.AdamW(parameters, config.learning_rate, weight_decay=config.weight_decay, fused=True)
    return torch.optim.SGD(
        parameters, config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay, fused=True
    )
