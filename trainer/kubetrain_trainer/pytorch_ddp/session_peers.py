"""How the processes of a PyTorch script of your own agree: by its default process group."""

from collections.abc import Callable

import torch
from torch import distributed as dist

from kubetrain_trainer.processes.process_group import Decision
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.pytorch_ddp.group import PATIENT_TIMEOUT, Group, patient_group
from kubetrain_trainer.pytorch_ddp.stopping import Stop


class GroupPeers:
    def __init__(self, role: ProcessRole) -> None:
        self._group = Group(role, torch.device("cpu"), patient_group(PATIENT_TIMEOUT))
        self._role = role
        self._stop: Stop | None = None
        self._asked = 0

    def from_rank_0(self, decide: Callable[[], Decision]) -> Decision:
        return self._group.from_rank_0(decide, takes_long=True)

    def wait(self) -> None:
        dist.barrier(self._group.patient)

    def must_stop(self) -> bool:
        self._stop = self._stop or Stop(self._role).__enter__()
        self._asked += 1
        return self._stop.is_due(self._asked)

    def leave(self) -> None:
        if self._stop:
            self._stop.__exit__(None, None, None)
