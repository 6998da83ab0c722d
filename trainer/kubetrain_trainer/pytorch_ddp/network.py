"""How the processes of a training are connected: asked once at the start, from all of them."""

import logging
import os
import socket

import torch
from torch import distributed as dist

from kubetrain_trainer.nccl_transport import describe_transport, read_transport, shortfalls, version_conflict
from kubetrain_trainer.process_group import with_interface
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.nccl_log import read_own_log
from kubetrain_trainer.resources import node_name

log = logging.getLogger(__name__)


def warn_of_versions(group: Group) -> None:
    """Warn if the pods have different versions of NCCL, before it fails for that reason."""
    if not uses_nccl(group):
        return
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    conflict = version_conflict(group.collect((node_name(), version)))
    if conflict and group.role.is_chief:
        log.warning(conflict)


def find_network(group: Group) -> str:
    """Return how the processes are connected, for the banner, and warn if that is less than the job asked for.

    NCCL must have connected them already, in an earlier exchange.
    """
    if group.role.world_size == 1:
        return ""
    if not uses_nccl(group):
        return f"gloo over {os.environ.get('GLOO_SOCKET_IFNAME') or _own_address()}"
    processes = group.collect((node_name(), read_transport(read_own_log())))
    if group.role.is_chief:
        for shortfall in shortfalls(processes, os.environ):
            log.warning(shortfall)
    return describe_transport(transport for _, transport in processes) or with_interface("nccl")


def uses_nccl(group: Group) -> bool:
    return group.role.world_size > 1 and dist.get_backend() == "nccl"


def _own_address() -> str:
    """Return the address that gloo finds for this host. If there is none, it uses the loopback interface."""
    try:
        return socket.gethostbyname(socket.gethostname())
    except OSError:
        return "the loopback interface"
