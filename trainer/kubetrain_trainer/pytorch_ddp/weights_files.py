"""Files of a model's weights by name, as an export has them: one of PyTorch, or one or several of safetensors.

model.pt
model.safetensors
model-00001-of-00002.safetensors, …, model.safetensors.index.json    the names in each, if they are large
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kubetrain_trainer.durable_files import read_json, write_json
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.model_folder import listed_file
from kubetrain_trainer.pytorch_ddp.state_files import load_state
from kubetrain_trainer.unusable_files import unlisted_error

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
        save_file({each: read(each).contiguous().clone() for each in group}, folder / name, {"format": "pt"})
    if len(groups) > 1:
        files = {each: name for name, group in zip(names, groups, strict=True) for each in group}
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
        return {name: tensor for each in files for name, tensor in read_weights(path.parent / each, device).items()}
    if path.suffix == ".safetensors":
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path, str(device))
        except SafetensorError as error:
            raise KubetrainError(f"{path} is damaged ({error}): write it again") from error
    return load_state(path, device, mmap=device.type == "cpu")
