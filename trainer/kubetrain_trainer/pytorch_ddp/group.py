"""The processes that train together: the device of each, and what they tell one another."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch import distributed as dist

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.cpus import cpu_name, threads_of
from kubetrain_trainer.errors import Stopped
from kubetrain_trainer.process_role import ProcessRole, check_gpus
from kubetrain_trainer.start_banner import describe_start
from kubetrain_trainer.watchdog import PEERS_FACTOR

Decision = TypeVar("Decision")
MAX_EXPORT = timedelta(days=1)


@contextlib.contextmanager
def process_group(config: TrainConfig, role: ProcessRole) -> Iterator[torch.device]:
    """The device of this process, in a group with all others; all leave it together when all went well, or stop."""
    check_gpus(config, role, torch.cuda.device_count())
    device = choose_device(role)
    if role.world_size == 1:
        yield device
        return
    automatic = "nccl" if device.type == "cuda" else "gloo"
    communication = automatic if config.communication == "auto" else config.communication
    dist.init_process_group(communication, timeout=timedelta(seconds=PEERS_FACTOR * config.nccl_timeout_seconds))
    # The others wait for the chief's export, which may take longer than the timeout of a collective.
    farewell = dist.new_group(backend="gloo", timeout=MAX_EXPORT)
    try:
        yield device
    except Stopped:
        leave(farewell)
        raise
    leave(farewell)


def leave(farewell: Any) -> None:
    dist.barrier(farewell)
    dist.destroy_process_group()


def choose_device(role: ProcessRole) -> torch.device:
    """The GPU of this process, or its share of the CPUs where there is none."""
    torch.set_num_threads(threads_of(role))
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", role.local_rank)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True  # inputs are of one size
    return device


def describe_group(role: ProcessRole, device: torch.device, precision: str) -> str:
    return describe_start(
        backend=f"PyTorch {torch.__version__}",
        world_size=role.world_size,
        transport=dist.get_backend() if role.world_size > 1 else "",
        precision=precision,
        threads=torch.get_num_threads(),
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else cpu_name(),
    )


def gpu_memory_peak() -> int:
    """The most bytes that this process took of its GPU's memory; 0 without a GPU."""
    return torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0


def from_chief(decide: Callable[[], Decision], role: ProcessRole) -> Decision:
    """What the chief decides, in every process: each by itself could see shared storage at another moment."""
    decision = [decide() if role.is_chief else None]
    if role.world_size > 1:
        dist.broadcast_object_list(decision)
    return decision[0]  # type: ignore[return-value]


def read_numbers(numbers: Sequence[Tensor]) -> list[float]:
    """Bring them from the device, for which the host waits once."""
    values: list[float] = torch.stack([number.double() for number in numbers]).tolist()
    return values


def sum_over_processes(values: list[float], role: ProcessRole, device: torch.device) -> list[float]:
    if role.world_size == 1:
        return values
    sums = torch.tensor(values, dtype=torch.float64, device=device)
    dist.all_reduce(sums)
    totals: list[float] = sums.tolist()
    return totals


def share_statistics(model: nn.Module, role: ProcessRole) -> None:
    """Give every process the chief's running statistics: they are what is evaluated, and what is saved."""
    if role.world_size > 1:
        for buffer in model.buffers():
            dist.broadcast(buffer, 0)
