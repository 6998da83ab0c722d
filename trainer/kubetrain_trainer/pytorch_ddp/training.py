"""The objects that the training loop uses."""

import copy
import logging
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from kubetrain_trainer.data.sampling import check_sampler
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.loop.recent_steps import RecentSteps
from kubetrain_trainer.loop.same_everywhere import Replicas, check_same_data
from kubetrain_trainer.loop.training import AnyTraining, splits
from kubetrain_trainer.models.initial_weights import initial_weights, warn_of_frozen
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.processes.watchdog import Watchdog
from kubetrain_trainer.pytorch_ddp.checkpoint import restore, save, state_of
from kubetrain_trainer.pytorch_ddp.data_parallel import data_parallel, suitable_format
from kubetrain_trainer.pytorch_ddp.export import EXPORT_FILES, export
from kubetrain_trainer.pytorch_ddp.group import Group, collective_timeout
from kubetrain_trainer.pytorch_ddp.initial_weights import frozen_among, load_initial_weights
from kubetrain_trainer.pytorch_ddp.joint_writing import JointWriting
from kubetrain_trainer.pytorch_ddp.layers import all_layers, freeze, has_running_statistics, recompute_activations
from kubetrain_trainer.pytorch_ddp.loading import Loader
from kubetrain_trainer.pytorch_ddp.measures import check_metrics
from kubetrain_trainer.pytorch_ddp.model import fill
from kubetrain_trainer.pytorch_ddp.operations import seconds_at_peak
from kubetrain_trainer.pytorch_ddp.optimizer import (
    Averages,
    Optimizers,
    build_optimizers,
    factors_of,
    warn_of_untrained,
)
from kubetrain_trainer.pytorch_ddp.sendable import check_sendable
from kubetrain_trainer.pytorch_ddp.sharding import is_sharded, norm_of, shards
from kubetrain_trainer.pytorch_ddp.staging import Staging
from kubetrain_trainer.pytorch_ddp.stopping import Stop
from kubetrain_trainer.pytorch_ddp.streams import StreamLoader, is_stream, yields_batches
from kubetrain_trainer.pytorch_ddp.task import Task, build_task
from kubetrain_trainer.pytorch_ddp.timing import GpuClock, recording
from kubetrain_trainer.reporting.own_time import HostClock, OwnTime
from kubetrain_trainer.reporting.profile import Profile
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.layers import warn_of_slow_layers
from kubetrain_trainer.settings.model_names import is_import_path

log = logging.getLogger(__name__)
AnyLoader = Loader | StreamLoader


@dataclass(frozen=True, kw_only=True)
class Training(AnyTraining):
    group: Group
    task: Task
    loader: AnyLoader
    validation: AnyLoader
    model: nn.Module
    """The task's model, wrapped to average its gradients over all processes."""
    optimizers: Optimizers
    averages: Averages | None
    staging: Staging
    joint: JointWriting | None
    """How processes write the shards of the state together."""
    stop: Stop

    def measures(self) -> dict[str, float]:
        return super().measures() | self.staging.gpu_stall()

    def restore(self, checkpoint: Checkpoint) -> None:
        state = (self.task.model, self.optimizers, self.averages)
        is_own = checkpoint.path.parent == self.output.checkpoints
        positions = restore(checkpoint, self.config, *state, self.group, keep_hyperparameters=not is_own)
        if isinstance(self.loader, StreamLoader):
            self.loader.resume_at(positions)

    def save(self, progress: TrainingProgress, details: Mapping[str, Any]) -> None:
        loader, model = self.loader, self.task.model
        positions = self.group.collect(loader.position()) if isinstance(loader, StreamLoader) else None
        holds_part = self.group.role.rank < shards(self.config, self.group)
        state = state_of(model, self.optimizers, self.averages, positions) if holds_part else {}
        has_room = all(self.group.collect(self.staging.has_room(state)))
        if holds_part:
            staging = self.staging if has_room else None
            save(self.writer, staging, progress, details, state, model.buffers(), self.joint)
        if not has_room:
            self.group.from_rank_0(self.writer.wait, takes_long=True)  # else the next step would wait, with its timeout

    def export(self, checkpoint: Checkpoint) -> None:
        export(self.output, checkpoint, {"classes": self.task.classes}, as_safetensors=self.config.exports_safetensors)


def build_training(arguments: Arguments, group: Group, watchdog: Watchdog) -> Training:
    config = arguments.config
    torch.manual_seed(config.seed)  # the same initial weights in every process
    warnings.filterwarnings("error", "Using a target size")  # PyTorch trains with what broadcasting makes of it
    task = build_task(config, arguments.data_dir)
    config.check_metric(task.metrics)
    check_task(task, config)
    check_tensor_parallel(task, group)
    group.collect(None)  # wait for each other: a model may take much longer to build in one process than in another
    watchdog.beat_start()
    if task.sampler:
        check_sampler(task.sampler, group)
    loader, validation = open_loaders(task, config, group)
    watchdog.beat_start()
    task.model.train()  # the models of some libraries come in evaluation mode
    freeze(task.model, config.freeze)
    at_peak = seconds_at_peak(task, config, loader, group)
    copied = place(task, config, loader, group, initial_weights(arguments, group, EXPORT_FILES))
    watchdog.beat_start()
    own_time = OwnTime(GpuClock() if group.device.type == "cuda" else HostClock())
    parallel = data_parallel(config, task, group, own_time)
    writer, count = CheckpointWriter(arguments.output, config), shards(config, group)
    optimizers = build_optimizers(config, task, config.global_batch(group.replicas))
    if group.role.is_rank_0:
        warn_of_untrained(task.model, optimizers)
        warn_of_slow_layers(factors_of(config, task.model).values(), config.layer_rate)
    return Training(
        config=config,
        output=arguments.output,
        group=group,
        task=task,
        loader=loader,
        validation=validation,
        model=parallel,
        optimizers=optimizers,
        peak_rate=optimizers.peak_rate,
        averages=Averages(config, task.model, copied) if copied else None,  # now that all have rank 0's weights
        writer=writer,
        staging=Staging(min(count, group.role.local_world_size)),
        recent=RecentSteps(config, group, writer.resume_hint),
        replicas=Replicas(group, partial(norm_of, task.model), shards(config, group), own_step=bool(task.step)),
        profile=Profile(config, arguments.output, group.role, recording),
        watchdog=watchdog,
        own_time=own_time,
        joint=JointWriting(group.role.rank, count, collective_timeout(config)) if count > 1 else None,
        stop=Stop(group.role),
        seconds_at_peak=at_peak,
    )


def place(task: Task, config: TrainConfig, loader: AnyLoader, group: Group, weights: Path | None) -> nn.Module | None:
    """Put the model with these weights, or its shards of them, on the device. Return a copy for its averages."""
    model = task.model
    copied = copy.deepcopy(model) if config.ema_decay else None  # now, because what is sharded cannot be copied
    models = [model, copied] if copied else [model]
    if is_sharded(config, group):
        from kubetrain_trainer.pytorch_ddp.shard_model import mesh_of, shard

        mesh = mesh_of(config, group)
        for module in models:
            shard(module, task, config, group, mesh)
    else:
        for module in models:
            fill(module, group.device)
        if memory_format := suitable_format(task, config, loader, group.device):
            for module in models:
                module.to(memory_format=memory_format)
    if weights:
        new = load_initial_weights(weights, model)
        if group.role.is_rank_0:
            warn_of_frozen(frozen_among(new, model))
    if config.activation_checkpointing:
        check_recomputable(task, config, group)
        recompute_activations(model, task)
    if group.role.is_rank_0:
        warn_without_layers(task, config, group)
    return copied


def warn_without_layers(task: Task, config: TrainConfig, group: Group) -> None:
    by_layers = {"sharding": is_sharded(config, group), "activation_checkpointing": config.activation_checkpointing}
    needing = [name for name, is_used in by_layers.items() if is_used]
    if needing and not all_layers(task.model, task):
        log.warning(
            "the model has no list or sequence of layers, which %s would take one at a time: name them in Task.layers",
            " and ".join(needing),
        )


def check_recomputable(task: Task, config: TrainConfig, group: Group) -> None:
    """
    Raises:
        InvalidSetting: if PyTorch cannot compile the model.
    """
    if config.is_compiled and not is_sharded(config, group) and has_running_statistics(task.model, task):
        raise InvalidSetting(
            f"train.compile={config.compile} cannot be combined with train.activation_checkpointing=true in layers "
            "with batch normalization, unless several processes share the model (sharding): leave one of them out"
        )


def check_task(task: Task, config: TrainConfig) -> None:
    """Check what can be checked before anything is loaded.

    Raises:
        InvalidSetting: if a setting contradicts a step of the task's own.
    """
    check_metrics(task.metrics)
    for name, only in (("gradient_accumulation", 1), ("global_batch_size", 0)):
        if task.step and getattr(config, name) != only:
            raise InvalidSetting(
                f"train.{name} must be {only}, because the task's own step splits its batches into micro-batches itself"
            )
    if config.layer_rate != 1 and (task.optimizer or task.parameter_groups):
        chooses = "optimizer" if task.optimizer else "parameter_groups"
        raise InvalidSetting(
            f"train.layer_rate must be 1, because the task's own {chooses} chooses the rates of layers"
        )
    if task.step and config.precision == "fp16":
        raise InvalidSetting("train.precision cannot be fp16, because the task's own step does not scale its losses")
    if task.step and config.uses_cuda_graphs:
        raise InvalidSetting(
            f"train.compile cannot be {config.compile}, because the task's own step may use what a CUDA graph "
            "overwrites"
        )
    if task.step and config.on_nan == "skip":
        raise InvalidSetting(
            "train.on_nan must be stop, because the task's own step updates the model before the loss is checked"
        )


def check_tensor_parallel(task: Task, group: Group) -> None:
    """
    Raises:
        InvalidSetting: if the task has no plan for tensor parallelism.
    """
    if group.tensor_parallel > 1 and not task.tensor_plan:
        raise InvalidSetting("train.tensor_parallel needs the tensor_plan of a task of your own")


def open_loaders(task: Task, config: TrainConfig, group: Group) -> list[AnyLoader]:
    """Return the loaders of the samples to train on and of those to validate with."""
    training, validation = splits(task, config, group)
    loaders = [open_loader(samples, task, config, group.data_role, group.device) for samples in (training, validation)]
    compared = None if is_stream(validation) else validation  # of a stream, each process has its own samples
    draw = loaders[0].draw if isinstance(loaders[0], Loader) and not hasattr(training, "files_checksum") else None
    check_same_data(training, compared, draw, config.seed, group)
    return loaders


def open_loader(samples: Any, task: Task, config: TrainConfig, role: ProcessRole, device: torch.device) -> AnyLoader:
    if is_import_path(config.model) and config.loader_workers != 0:
        check_sendable("samples", samples)
        check_sendable("collate", task.collate)
    has_indices = not is_stream(samples)
    if config.tensor_parallel > 1 and not has_indices:
        raise InvalidSetting(
            "train.tensor_parallel must be 1 for samples without indices: its processes need the same ones"
        )
    if yields_batches(samples) and (task.collate or has_indices):
        has = "collate" if task.collate else "[index]"
        raise InvalidSetting(f"data with yields_batches makes its batches itself, so that {has} has no use: remove it")
    return (Loader if has_indices else StreamLoader)(samples, config, role, device, task.collate)
