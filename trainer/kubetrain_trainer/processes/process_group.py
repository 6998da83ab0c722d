"""The processes that train together, seen from one of them, with the same methods for every framework."""

import os
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig

Decision = TypeVar("Decision")
MAX_TEXT_BYTES = 63
"""Enough for most names of nodes."""


class ProcessGroup(Protocol):
    """All processes must call the methods that are collectives in the same order: each call waits for all of them."""

    role: ProcessRole
    network: str = ""
    """How the processes are connected; empty if there is only one."""
    preflight: str = ""
    """The measurements of the preflight in a line; empty without one."""

    @property
    def replicas(self) -> int:
        """The number of copies of the model, over all processes."""
        return self.role.world_size

    @property
    def devices(self) -> int:
        """The number of GPUs that compute, or of processes without one."""
        return self.replicas

    def describe(self, config: TrainConfig) -> str:
        """Return the log line that describes the processes and their hardware."""

    def from_rank_0(self, decide: Callable[[], Decision], *, takes_long: bool = False) -> Decision:
        """Return rank 0's decision in every process, because on shared storage each could see a different state.

        If it takes long, such as writing a checkpoint, the others wait for it for hours.
        """

    def sum(self, values: list[float]) -> list[float]:
        """Return each value's sum over all processes."""

    def gather(self, value: float) -> list[float]:
        """Return the value of each process, by rank."""
        return [number for (number,) in self.gather_all([value])]

    def gather_all(self, values: Sequence[float]) -> list[list[float]]:
        """Return the values of each process, by rank: a sum to which each process adds zeros for the others."""
        count, processes = len(values), self.role.world_size
        rows = [values if rank == self.role.rank else [0.0] * count for rank in range(processes)]
        sums = self.sum([value for row in rows for value in row])
        return [sums[first : first + count] for first in range(0, count * processes, count)]

    def gather_text(self, text: str) -> list[str]:
        """Return the text of each process, by rank, cut after MAX_TEXT_BYTES."""
        content = text.encode()[:MAX_TEXT_BYTES].ljust(MAX_TEXT_BYTES, b"\0")
        rows = self.gather_all([float(byte) for byte in content])
        return [bytes(map(int, row)).rstrip(b"\0").decode(errors="ignore") for row in rows]

    def broadcast_statistics(self, model: Any) -> None:
        """Copy rank 0's running statistics to every replica, because these are evaluated and saved."""

    def read_numbers(self, numbers: Sequence[Any]) -> list[float]:
        """Copy numbers from this process's device to the host, which waits for them."""

    def gpu_memory_peak(self) -> int:
        """Return the peak GPU memory of this process in bytes; 0 without a GPU."""


def describe_start(
    *,
    backend: str,
    world_size: int,
    network: str,
    precision: str,
    threads: int,
    device: str,
    sharding: str = "none",
    used_gpus: int = 0,
    gpus: int = 0,
) -> str:
    """Return a line like "training starts: PyTorch 2.15.0, 2 processes, gloo over eth0, fp32, 1 thread each, CPU".

    Read it first if a training is slow.

    Args:
        gpus: GPUs of this pod, of which its processes use used_gpus.
    """
    parts = [
        backend,
        counted(world_size, "process", "processes"),
        network,
        f"train.sharding={sharding}" if sharding != "none" else "",
        precision,
        counted(threads, "thread", "threads") + " each" * (world_size > 1),
        f"{used_gpus} of {counted(gpus, 'GPU', 'GPUs')} in this pod" if gpus else "",
        device,
    ]
    return "training starts: " + ", ".join(part for part in parts if part)


def with_interface(transport: str) -> str:
    """Add the network interface, if a variable of this transport names one."""
    interface = os.environ.get(f"{transport.upper()}_SOCKET_IFNAME")
    return f"{transport} over {interface}" if interface else transport


def counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"
