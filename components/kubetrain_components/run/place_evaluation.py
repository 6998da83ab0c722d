"""Where the evaluation runs: like a training pod, but its one process needs only one GPU."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubetrain_components.jobs.placement import Placement, is_gpu
from kubetrain_components.jobs.quantity import amount


def place_evaluation(training: Placement, own: Mapping[str, Any]) -> Placement:
    """Return the placement of the evaluation, in which its own settings replace those of the training.

    Raises:
        InvalidSetting: if its own settings cannot be used, or do not fit the training's.
    """
    return Placement.from_dict({**_with_one_gpu(training).changed_settings(), **Placement.each_of(own)})


def _with_one_gpu(training: Placement) -> Placement:
    """Keep RDMA devices: as pods with them run as root, no other user can write to the output."""
    others = {name: each for name, each in training.extra_resources.items() if not is_gpu(name)}
    gpus = [name for name, each in training.extra_resources.items() if is_gpu(name) and amount(str(each))]
    first = {} if training.gpus else dict.fromkeys(gpus[:1], 1)
    return replace(training, gpus=min(training.gpus, 1), extra_resources=others | first)
