"""The rank of this process and the number of processes, read from torchrun's variables or from TF_CONFIG."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from kubetrain_trainer.errors import InvalidSetting


@dataclass(frozen=True)
class ProcessRole:
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1

    @property
    def is_rank_0(self) -> bool:
        """Return True if this process writes checkpoints, reports and logs for all."""
        return self.rank == 0


def torchrun_role(environment: Mapping[str, str] = os.environ) -> ProcessRole:
    """Return the role that torchrun assigned. Without torchrun, this is the only process.

    LOCAL_RANK decides, because the training operator also sets RANK, to the rank of the node.
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
    """Return the role that TF_CONFIG assigns. Without it (a TFJob with one replica), this is the only process.

    The chief has rank 0 and the workers follow. Without a chief, worker 0 has rank 0.
    """
    config = json.loads(environment.get("TF_CONFIG") or "{}")
    cluster = config.get("cluster", {})
    chiefs, workers = len(cluster.get("chief", [])), len(cluster.get("worker", []))
    if chiefs + workers == 0:
        return ProcessRole()
    task = config["task"]
    first = 0 if task["type"] == "chief" else chiefs
    return ProcessRole(rank=first + int(task["index"]), world_size=chiefs + workers)


def own_role(environment: Mapping[str, str] = os.environ) -> ProcessRole:
    """Return the role of a process of your own: that of torchrun or TF_CONFIG, or else that of its pod."""
    if "LOCAL_RANK" in environment:
        return torchrun_role(environment)
    if environment.get("TF_CONFIG"):
        return tensorflow_role(environment)
    # WORLD_SIZE counts the processes that a command of torchrun would start, not the pods.
    return ProcessRole(rank=int(environment.get("PET_NODE_RANK", 0)), world_size=int(environment.get("PET_NNODES", 1)))


def check_gpus(role: ProcessRole, gpus: int) -> None:
    """Check that the pod has as many GPUs as the settings need.

    Raises:
        InvalidSetting: if it has too few.
    """
    if 0 < gpus < role.local_world_size:
        raise InvalidSetting(
            f"each of the pod's {role.local_world_size} processes needs its own GPU, but the pod has {gpus}: lower "
            "pods.processes, or give the pod more GPUs"
        )
