"""Start from weights that were trained before, with another last layer if the classes differ."""

import logging
from collections.abc import Container
from pathlib import Path

from torch import Tensor, device, nn

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.models.initial_weights import misfit
from kubetrain_trainer.pytorch_ddp.export import read_weights
from kubetrain_trainer.pytorch_ddp.state_files import load_tensors

COUNTER = ".num_batches_tracked"
"""Files that PyTorch wrote before 0.4.1 lack it, such as some of torchvision's."""
log = logging.getLogger(__name__)


def load_initial_weights(path: Path, model: nn.Module) -> list[str]:
    """Load what fits, and return the names of what starts at random.

    Raises:
        InvalidSetting: if more than the last layer differs.
    """
    weights, own = read(path), model.state_dict()
    shapes, own_shapes = ({name: tensor.shape for name, tensor in state.items()} for state in (weights, own))
    own_shapes = {name: shape for name, shape in own_shapes.items() if name in shapes or not name.endswith(COUNTER)}
    differing = sorted(name for name in {*shapes, *own_shapes} if shapes.get(name) != own_shapes.get(name))
    if others := [name for name in differing if not name.startswith(last_layer(model))]:
        theirs, ours = (known.get(others[0], "missing") for known in (shapes, own_shapes))
        raise misfit(path, f"{others[0]} is {described(theirs)} there and {described(ours)} here")
    fitting = {name: value for name, value in weights.items() if name not in differing}
    load_tensors(model, [fitting])
    log.info("the training starts from %s%s", path, f"; new: {', '.join(differing)}" if differing else "")
    return differing


def frozen_among(names: Container[str], model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if name in names and not parameter.requires_grad]


def read(path: Path) -> dict[str, Tensor]:
    try:
        weights = read_weights(path, device("cpu"))
    except KubetrainError:
        raise
    except Exception as error:  # torch raises exceptions of many classes
        raise misfit(path, f"PyTorch cannot read it ({type(error).__name__})") from error
    if not isinstance(weights, dict) or not all(isinstance(value, Tensor) for value in weights.values()):
        raise misfit(path, "it does not hold tensors by name, as a state_dict does")
    return weights


def last_layer(model: nn.Module) -> str:
    *_, name = model.state_dict()
    return name.rpartition(".")[0] + "."


def described(shape: object) -> str:
    return str(tuple(shape)) if isinstance(shape, tuple) else str(shape)
