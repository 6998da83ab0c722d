"""How the processes of a script of your own agree: by the process group or strategy that the script has created."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.stop_signal import StopSignal

Decision = TypeVar("Decision")


class Peers(Protocol):
    def from_rank_0(self, decide: Callable[[], Decision]) -> Decision:
        """Return the decision of the process of rank 0 in every process."""

    def wait(self) -> None:
        """Wait until every process is here."""

    def must_stop(self) -> bool:
        """Return True in every process if any of them received SIGTERM."""

    def leave(self) -> None:
        """Stop listening to the others."""


def peers_of(role: ProcessRole, strategy: Any) -> Peers:
    """
    Raises:
        KubetrainError: if the processes have no way to agree yet.
    """
    if role.world_size == 1:
        return NoPeers()
    if strategy is not None:
        return _peers("tensorflow", role, strategy)
    torch = sys.modules.get("torch.distributed")
    if torch is not None and torch.is_initialized():
        return _peers("pytorch", role)
    raise KubetrainError(
        f"the session's {role.world_size} processes cannot agree yet: call its functions after init_process_group(), "
        "or after session.use(strategy) with TensorFlow"
    )


def _peers(framework: str, *arguments: Any) -> Peers:
    """Load the framework's part only if the script has loaded the framework."""
    peers: Peers = importlib.import_module(f"{package_of(framework)}.session_peers").GroupPeers(*arguments)
    return peers


class NoPeers:
    def __init__(self) -> None:
        self._signal: StopSignal | None = None

    def from_rank_0(self, decide: Callable[[], Decision]) -> Decision:
        return decide()

    def wait(self) -> None:
        pass

    def must_stop(self) -> bool:
        self._signal = self._signal or StopSignal().__enter__()
        return self._signal.is_requested

    def leave(self) -> None:
        if self._signal:
            self._signal.__exit__(None, None, None)
