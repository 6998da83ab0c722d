"""What the loop works with: the task, and all that trains, watches, stops and saves it."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kubetrain_trainer.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.entry_point import Arguments
from kubetrain_trainer.model_names import is_import_path
from kubetrain_trainer.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.averaging import Averages
from kubetrain_trainer.pytorch_ddp.group import from_chief, read_numbers, sum_over_processes
from kubetrain_trainer.pytorch_ddp.staging import Staging
from kubetrain_trainer.pytorch_ddp.stopping import Stop
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.recent_steps import RecentSteps
from kubetrain_trainer.training_output import TrainingOutput
from kubetrain_trainer.watchdog import Watchdog


@dataclass(frozen=True, kw_only=True)
class Training:
    """What changes is in the model, the optimizer and the progress."""

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
    sum_over_processes: Callable[[list[float]], list[float]]
    recent: RecentSteps
    watchdog: Watchdog
    stop: Stop

    @property
    def judged(self) -> Task:
        """The task as it is validated: with the averaged weights, where they are kept."""
        return replace(self.task, model=self.averages.model) if self.averages else self.task

    @property
    def global_batch(self) -> int:
        return self.config.batch_size * self.role.world_size

    @property
    def doing(self) -> str:
        return f"in {self.watchdog.doing}, with batch_size={self.config.batch_size}"


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

    def sum_numbers(values: list[float]) -> list[float]:
        return sum_over_processes(values, role, device)

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
        sum_over_processes=sum_numbers,
        recent=RecentSteps(config, role, read_numbers, sum_numbers, lambda: from_chief(writer.resume_hint, role)),
        watchdog=Watchdog(config, role),
        stop=Stop(role),
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
