"""How the processes are connected, asked once at the start from all of them, and a measurement before the first step.

It names the links between pods and the devices that stand out.
"""

import functools
import logging
import os
import socket
import time
from collections.abc import Callable

import torch
from torch import Tensor
from torch import distributed as dist

from kubetrain_trainer.processes.nccl_transport import describe_transport, read_transport, shortfalls, version_conflict
from kubetrain_trainer.processes.preflight import (
    LINK_BYTES,
    BadNodes,
    Examined,
    describe,
    find,
    nodes_to_avoid,
    partners,
    warnings,
)
from kubetrain_trainer.processes.process_group import with_interface
from kubetrain_trainer.processes.resources import node_name
from kubetrain_trainer.processes.watchdog import Watchdog
from kubetrain_trainer.pytorch_ddp.group import Group
from kubetrain_trainer.pytorch_ddp.launching.nccl_log import read_own_log
from kubetrain_trainer.settings.config import TrainConfig

ATTEMPTS = 3
"""The fastest counts, because anything may interrupt one of them."""
WARM_UP_BYTES = 2**20
"""The size of a first message each way, which connects two processes and is not measured."""
SIDES = {"cuda": 4096, "cpu": 512}
"""The number of rows and columns of a matrix, by the type of the device."""
PRODUCTS = 10
"""The products of an attempt: a single one is too short to be measured."""
log = logging.getLogger(__name__)


def run_preflight(config: TrainConfig, group: Group, watchdog: Watchdog) -> str:
    """Return what all processes measured in a line, which rank 0 logs with its warnings; empty if it is not due.

    Raises:
        BadNodes: in all processes, if the next attempt shall avoid some of their nodes.
    """
    if not is_due(config, group):
        return ""
    began = time.perf_counter()
    measured = group.collect(examine(group, watchdog))
    torch.cuda.empty_cache()
    findings = find(measured)
    text = describe(measured, findings, time.perf_counter() - began)
    if group.role.is_rank_0:
        log.info("preflight: %s", text)
        for warning in warnings(findings):
            log.warning(warning)
    if config.preflight == "avoid" and (nodes := nodes_to_avoid(measured, findings)):
        raise BadNodes(nodes, findings)
    return text


def is_due(config: TrainConfig, group: Group) -> bool:
    if config.preflight == "auto":
        return group.role.world_size > group.role.local_world_size and group.device.type == "cuda"
    return config.preflight != "false"


def examine(group: Group, watchdog: Watchdog) -> Examined:
    watchdog.beat("the preflight")
    seconds, is_exact = multiply(group.device)
    return Examined(
        rank=group.role.rank,
        node=node_name(),
        device=group.device_name,
        product_seconds=seconds,
        is_exact=is_exact,
        link_seconds=exchange_with_neighbors(group, watchdog),
    )


def multiply(device: torch.device) -> tuple[float, bool]:
    """Return the time of a product of matrices, and whether it was exact."""
    random = torch.Generator(device).manual_seed(0)
    one, another = (small_integers(random) for _ in range(2))
    product = one @ another

    def repeat() -> None:
        for _ in range(PRODUCTS):
            torch.mm(one, another, out=product)

    seconds = min(timed(repeat, device) for _ in range(ATTEMPTS)) / PRODUCTS
    return seconds, is_product(product, one, another)


def small_integers(random: torch.Generator) -> Tensor:
    """Return a matrix of -1, 0 and 1. Sums of their products are integers that even fp16 holds, in any order."""
    side, device = SIDES[random.device.type], random.device
    signs = torch.randint(-1, 2, (side, side), generator=random, device=device)
    return signs.to(torch.float16 if device.type == "cuda" else torch.float32)


def is_product(product: Tensor, one: Tensor, another: Tensor) -> bool:
    """Compare the sums of the rows, which need no second product."""
    return torch.equal(product.double().sum(1), one.double() @ another.double().sum(1))


def exchange_with_neighbors(group: Group, watchdog: Watchdog) -> dict[int, float]:
    """Return the time of the exchange with each neighbor, by its rank."""
    device = group.device if uses_nccl(group) else torch.device("cpu")
    sent, received = (torch.zeros(LINK_BYTES, dtype=torch.uint8, device=device) for _ in range(2))
    seconds = {}
    for partner in partners(group.role):
        watchdog.beat("the preflight")
        if partner is not None:
            exchange(sent[:WARM_UP_BYTES], received[:WARM_UP_BYTES], partner)
            at_full_size = functools.partial(exchange, sent, received, partner)
            seconds[partner] = min(timed(at_full_size, device) for _ in range(ATTEMPTS))
    return seconds


def exchange(sent: Tensor, received: Tensor, partner: int) -> None:
    both = [dist.P2POp(dist.isend, sent, partner), dist.P2POp(dist.irecv, received, partner)]
    for work in dist.batch_isend_irecv(both):
        work.wait()


def timed(work: Callable[[], None], device: torch.device) -> float:
    synchronize(device)
    began = time.perf_counter()
    work()
    synchronize(device)
    return time.perf_counter() - began


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def warn_of_versions(group: Group) -> None:
    """Warn if the pods have different versions of NCCL, before it fails for that reason."""
    if not uses_nccl(group):
        return
    version = ".".join(map(str, torch.cuda.nccl.version()))  # type: ignore[no-untyped-call]
    conflict = version_conflict(group.collect((node_name(), version)))
    if conflict and group.role.is_rank_0:
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
    if group.role.is_rank_0:
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
