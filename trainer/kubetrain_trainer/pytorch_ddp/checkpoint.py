"""Save and restore the state of a training."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.output.unusable_files import misfit_error
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.joint_writing import JointWriting
from kubetrain_trainer.pytorch_ddp.optimizer import Averages, Optimizers
from kubetrain_trainer.pytorch_ddp.sharding import is_dtensor, is_sharded
from kubetrain_trainer.pytorch_ddp.staging import Staging
from kubetrain_trainer.pytorch_ddp.state_files import (
    STATE_FILE,
    joined,
    load_tensors,
    read_files,
    save_state,
    with_shards,
)
from kubetrain_trainer.pytorch_ddp.streams import Position
from kubetrain_trainer.pytorch_ddp.structures import as_bytes, map_tensors, outline, tensors_in, to_device, with_tensors
from kubetrain_trainer.settings.config import TrainConfig


def state_of(
    model: nn.Module, optimizers: Optimizers, averages: Averages | None, positions: Sequence[Position] | None
) -> dict[str, Any]:
    """Return the state of this process, of which it has shards if the model is sharded."""
    state: dict[str, Any] = {"model": model.state_dict(), "optimizer": optimizers.state_dict()}
    if averages is not None:
        state["averages"] = averages.model.state_dict()
    if positions is not None:
        state["positions"] = positions
    own: dict[str, Any] = with_shards(state)
    return own


def save(
    writer: CheckpointWriter,
    staging: Staging | None,
    progress: TrainingProgress,
    details: Mapping[str, Any],
    state: Mapping[str, Any],
    buffers: Iterable[Tensor],
    joint: JointWriting | None,
) -> None:
    """Copy the state, and let the writer write the copy while the next steps run.

    Args:
        staging: Memory for the copy; None: the state itself is written, and must not change until then.
        joint: How the processes that hold shards of the state write them, each calling this.
    """
    writer.wait()  # the previous checkpoint is written from the same memory
    staged = staging.copy(state, changed_by_forward=buffers) if staging else state

    def write(path: Path) -> None:  # in the writer's thread, so that no step waits for storage
        if staging:
            staging.wait()
        save_state(staged, path)

    if joint is None:
        writer.start(progress, details, lambda folder: write(folder / STATE_FILE))
    else:
        writer.start_thread(progress.step, joint.work(writer, progress, details, write))


def restore(
    checkpoint: Checkpoint,
    config: TrainConfig,
    model: nn.Module,
    optimizers: Optimizers,
    averages: Averages | None,
    group: Group,
    *,
    keep_hyperparameters: bool,
) -> Sequence[Position] | None:
    """Load the checkpoint. Only rank 0 reads it, or each process its shards if the model is sharded.

    Return where in the training data the processes were that saved it, if they kept that.

    Raises:
        KubetrainError: if the checkpoint belongs to another model or optimizer.
    """
    if is_sharded(config, group):
        # Each process maps all files, and copies from them what falls into its shards, for any number of processes.
        states, kept = read_files(checkpoint.path), copied
    else:  # shared_state() has copied it
        states, kept = [shared_state(lambda: joined(read_files(checkpoint.path)), group)], lambda state: state
    try:
        load_weights(model, [saved["model"] for saved in states], config, group)
        # The state of a parameter is sharded as the parameter itself, which says what of it to read.
        others = [{name: saved[name] for name in saved if name not in ("model", "averages")} for saved in states]
        rest = kept(joined(others, {"optimizer": optimizers.parameters()}))
        optimizers.load_state_dict(rest["optimizer"], keep_hyperparameters=keep_hyperparameters)
        if averages is not None:
            load_weights(averages.model, [evaluated_weights(saved) for saved in states], config, group)
    except (RuntimeError, ValueError, KeyError) as error:
        raise misfit_error(checkpoint, config) from error
    positions: Sequence[Position] | None = to_device(rest.get("positions"), torch.device("cpu"))
    return positions


def load_weights(model: nn.Module, states: Sequence[Mapping[str, Any]], config: TrainConfig, group: Group) -> None:
    """
    Raises:
        RuntimeError, ValueError: if it is the state of another model.
    """
    if not is_sharded(config, group):
        model.load_state_dict(states[0])
        return
    if model.state_dict().keys() != states[0].keys():
        raise ValueError("the state of another model")
    load_tensors(model, states)


def copied(state: Any) -> Any:
    """Return the state without tensors that are mapped from a file, which may be deleted. Shards are copies already."""
    return map_tensors(lambda tensor: tensor if is_dtensor(tensor) else tensor.clone(), state)


def evaluated_weights(state: Mapping[str, Any]) -> Any:
    """Return the averages, or the trained weights if there are none, because new averages start from the weights."""
    return state.get("averages", state["model"])


def shared_state(read: Callable[[], Any], group: Group) -> Any:
    """Return what rank 0 reads, in every process, with its tensors on the process's device.

    They are sent tensor by tensor: storage is read once, however many train.
    """
    state = read() if group.role.is_rank_0 else None
    outlined = group.from_rank_0(lambda: with_tensors(state, map(outline, tensors_in(state))), takes_long=True)
    own = iter(tensors_in(state))
    return with_tensors(outlined, (_broadcast(tensor, own, group) for tensor in tensors_in(outlined)))


def _broadcast(outlined: Tensor, own: Iterator[Tensor], group: Group) -> Tensor:
    tensor = torch.empty_like(outlined, device="cpu")
    if group.role.is_rank_0:
        tensor.copy_(next(own))  # reads the file if it is mapped, for as long as the storage needs
    if group.role.world_size > 1:
        dist.broadcast(as_bytes(tensor), 0, group.patient)
    return tensor.to(group.device)
