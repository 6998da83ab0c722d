"""Who this process is among all that train: from torchrun's variables, or from TF_CONFIG."""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting


@dataclass(frozen=True, kw_only=True)
class ProcessRole:
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_chief(self) -> bool:
        """Whether this process writes what the group has in common."""
        return self.rank == 0


def torchrun_role(environment: Mapping[str, str] = os.environ) -> ProcessRole:
    """The role that torchrun gave this process; the only process where there is no torchrun.

    RANK alone proves nothing: the training operator sets it to the rank of the node.
    """
    if "LOCAL_RANK" not in environment:
        return ProcessRole()
    return ProcessRole(
        rank=int(environment["RANK"]),
        world_size=int(environment["WORLD_SIZE"]),
        local_rank=int(environment["LOCAL_RANK"]),
        local_world_size=int(environment["LOCAL_WORLD_SIZE"]),
    )


def tensorflow_role(environment: Mapping[str, str] = os.environ) -> ProcessRole:
    """The role that TF_CONFIG gives this process; the only process where there is none (a TFJob of one replica).

    A chief is first and moves the workers up by one; without one, worker 0 is first.
    """
    config = json.loads(environment.get("TF_CONFIG") or "{}")
    cluster = config.get("cluster", {})
    chiefs, workers = len(cluster.get("chief", [])), len(cluster.get("worker", []))
    if chiefs + workers == 0:
        return ProcessRole()
    task = config["task"]
    first = 0 if task["type"] == "chief" else chiefs
    return ProcessRole(rank=first + int(task["index"]), world_size=chiefs + workers)


def check_gpus(config: TrainConfig, role: ProcessRole, gpus: int) -> None:
    """
    Raises:
        InvalidSetting: where this process's pod has fewer GPUs than the settings ask for.
    """
    if config.communication == "nccl" and gpus == 0:
        raise InvalidSetting(
            "communication=nccl needs GPUs, but this pod has none: give it one, or set communication=auto"
        )
    if 0 < gpus < role.local_world_size:
        raise InvalidSetting(
            f"each of the pod's {role.local_world_size} processes needs a GPU of its own, but the pod has {gpus}: "
            "lower processes_per_worker, or give the pod more GPUs"
        )
