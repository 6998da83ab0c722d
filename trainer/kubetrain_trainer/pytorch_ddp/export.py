"""Export the weights of a checkpoint as the model, and load them: a file of PyTorch, or one or several of safetensors.

model.pt
model.safetensors
model-00001-of-00002.safetensors, …, model.safetensors.index.json    the names in each, if they are large
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from kubetrain_trainer.durable_files import read_json, write_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.checkpoint_layout import Checkpoint
from kubetrain_trainer.output.model_folder import listed_file
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.output.unusable_files import other_model_error, unlisted_error
from kubetrain_trainer.pytorch_ddp.checkpoint import evaluated_weights
from kubetrain_trainer.pytorch_ddp.model import fill
from kubetrain_trainer.pytorch_ddp.state_files import joined, load_state, read_files, save_state, size_of

PYTORCH, SAFETENSORS = "model.pt", "model.safetensors"
INDEX = f"{SAFETENSORS}.index.json"
EXPORT_FILES = (PYTORCH, SAFETENSORS, INDEX)
"""The file that stands for an export: it has the first of these."""
LARGEST_FILE = 2 << 30
"""The weights of a file are in memory at once."""


def write_safetensors(
    folder: Path, sizes: Mapping[str, int], read: Callable[[str], Tensor], largest: int = LARGEST_FILE
) -> None:
    """Write the weights with these names and sizes, reading no more of them at once than a file has.

    Args:
        largest: The size of a file, which only a larger tensor exceeds.
    """
    from safetensors.torch import save_file

    groups = list(_grouped(sizes, largest))
    names = [f"model-{number:05d}-of-{len(groups):05d}.safetensors" for number in range(1, len(groups) + 1)]
    for name, group in zip(names if len(groups) > 1 else [SAFETENSORS], groups, strict=True):
        save_file({key: read(key).contiguous().clone() for key in group}, folder / name, {"format": "pt"})
    if len(groups) > 1:
        files = {key: name for name, group in zip(names, groups, strict=True) for key in group}
        write_json(folder / INDEX, {"metadata": {"total_size": sum(sizes.values())}, "weight_map": files})


def _grouped(sizes: Mapping[str, int], largest: int) -> Iterator[list[str]]:
    """Yield the names in their order, as many at once as fit one file."""
    group, total = list[str](), 0
    for name, size in sizes.items():
        if group and total + size > largest:
            yield group
            group, total = [], 0
        group, total = [*group, name], total + size
    yield group


def find_weights(folder: Path, files: Iterable[Mapping[str, Any]]) -> Path:
    """Return the file that stands for the weights, among those that are listed for this folder."""
    if name := listed_file(EXPORT_FILES, files):
        return folder / name
    raise unlisted_error(folder)


def read_weights(path: Path, device: torch.device) -> Any:
    """Read the file, or all files that an index names."""
    if path.name.endswith(".index.json"):
        files = sorted({*read_json(path)["weight_map"].values()})
        return {name: tensor for file in files for name, tensor in read_weights(path.parent / file, device).items()}
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path, str(device))
        except SafetensorError as error:
            raise KubetrainError(f"{path} is damaged ({error}): write it again") from error
    return load_state(path, device, mmap=device.type == "cpu")


def export(output: TrainingOutput, checkpoint: Checkpoint, details: Mapping[str, Any], *, as_safetensors: bool) -> None:
    """Write the weights that were validated. The checkpoint's other tensors stay in its files."""
    weights = [evaluated_weights(state) for state in read_files(checkpoint.path)]
    write = _write_safetensors if as_safetensors else _write_pytorch
    output.write_export(checkpoint, details, lambda folder: write(folder, weights))


def _write_pytorch(folder: Path, weights: list[Any]) -> None:
    """Write a file for `model.load_state_dict(torch.load("model.pt"))` anywhere."""
    save_state(joined(weights), folder / PYTORCH)


def _write_safetensors(folder: Path, weights: list[Any]) -> None:
    sizes = {name: size_of(value) for name, value in weights[0].items()}
    write_safetensors(folder, sizes, lambda name: joined([tensors[name] for tensors in weights]))


def load_export(output: TrainingOutput, model: nn.Module, device: torch.device) -> dict[str, Any]:
    """Load the exported weights into the model and return the manifest of the export."""
    manifest = output.read_export()
    load_weights(output.export, manifest["files"], model, device)
    return manifest


def load_weights(folder: Path, files: Iterable[Mapping[str, Any]], model: nn.Module, device: torch.device) -> None:
    """Load exported weights into the model, on this device.

    Raises:
        KubetrainError: if they belong to another model, or the file contains code.
    """
    path = find_weights(folder, files)
    fill(model, device)
    try:
        model.load_state_dict(read_weights(path, device))
    except (RuntimeError, TypeError) as error:
        raise other_model_error(path) from error
