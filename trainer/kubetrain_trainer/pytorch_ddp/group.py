"""The group of processes that train together, their devices, and their collectives."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist

from kubetrain_trainer.errors import InvalidSetting, Stopped
from kubetrain_trainer.failures import annotating_errors
from kubetrain_trainer.processes.process_group import Decision, ProcessGroup, describe_start
from kubetrain_trainer.processes.process_role import ProcessRole, check_gpus
from kubetrain_trainer.processes.resources import cpu_name, threads_of
from kubetrain_trainer.processes.watchdog import FIRST_STEP_FACTOR, PEERS_FACTOR, STORAGE_SECONDS
from kubetrain_trainer.pytorch_ddp.precision import describe_precision, use_tf32
from kubetrain_trainer.settings.config import TrainConfig

PATIENT_TIMEOUT = timedelta(seconds=PEERS_FACTOR * STORAGE_SECONDS)


@dataclass
class Group(ProcessGroup):
    role: ProcessRole
    device: torch.device
    patient: Any = None
    """The same processes, connected by gloo with a timeout that allows for slow storage."""
    tensor_parallel: int = 1
    """The number of processes that compute each sample together, in the order of their ranks."""

    @property
    def replicas(self) -> int:
        return self.role.world_size // self.tensor_parallel

    @property
    def device_name(self) -> str:
        return torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else cpu_name()

    @property
    def devices(self) -> int:
        return self.role.world_size

    @property
    def data_role(self) -> ProcessRole:
        """The rank of this process, and the number of processes, among those with different samples."""
        return replace(self.role, rank=self.role.rank // self.tensor_parallel, world_size=self.replicas)

    def describe(self, config: TrainConfig) -> str:
        return describe_start(
            backend=f"PyTorch {torch.__version__}",
            world_size=self.role.world_size,
            network=self.network,
            sharding=config.sharding,
            precision=describe_precision(config, self.device),
            threads=torch.get_num_threads(),
            device=self.device_name,
            used_gpus=self.role.local_world_size,
            gpus=torch.cuda.device_count(),
        )

    def from_rank_0(self, decide: Callable[[], Decision], *, takes_long: bool = False) -> Decision:
        decision = [decide() if self.role.is_rank_0 else None]
        if self.role.world_size > 1:
            dist.broadcast_object_list(decision, group=self.patient if takes_long else None)
        return decision[0]  # type: ignore[return-value]

    def sum(self, values: list[float]) -> list[float]:
        if self.role.world_size == 1:
            return values
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        totals: list[float] = sums.tolist()
        return totals

    def sum_once(self, values: list[float]) -> list[float]:
        """Return each value's sum over the processes with different samples."""
        return self.sum(values if self.role.rank % self.tensor_parallel == 0 else [0.0] * len(values))

    def collect(self, value: Any) -> list[Any]:
        """Return the value of each process, by rank, for anything that is not a number."""
        values = [value] * self.role.world_size
        if self.role.world_size > 1:
            dist.all_gather_object(values, value, group=self.patient)
        return values

    def broadcast_statistics(self, model: nn.Module) -> None:
        if self.role.world_size > 1:
            for buffer in model.buffers():
                values = buffer.contiguous()  # gloo would send what is between the values of a view
                dist.broadcast(values, 0)
                buffer.copy_(values)

    def read_numbers(self, numbers: Sequence[Tensor]) -> list[float]:
        values: list[float] = torch.stack([number.double() for number in numbers]).tolist()  # the host waits once
        return values

    def gpu_memory_peak(self) -> int:
        return torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0


@contextlib.contextmanager
def join_group(config: TrainConfig, role: ProcessRole) -> Iterator[Group]:
    """Join the other processes. After success or a stop, wait for them before leaving."""
    check_gpus(role, torch.cuda.device_count())
    group = Group(role, choose_device(config, role), tensor_parallel=tensor_parallel_size(config, role))
    if role.world_size == 1:
        yield group
        return
    dist.init_process_group("nccl" if group.device.type == "cuda" else "gloo", timeout=collective_timeout(config))
    group.patient = patient_group(collective_timeout(config))
    try:
        yield group
    except Stopped:
        leave(group)
        raise
    leave(group)


def patient_group(timeout: timedelta, ranks: Sequence[int] | None = None) -> Any:
    """Connect these processes, or all, by gloo for what takes long: to build a model, export, or save before a stop.

    Args:
        timeout: How long to wait for each other now. A process that ends in that time breaks no connection yet.
    """
    group: Any = dist.new_group(ranks, backend="gloo", timeout=timeout)
    if dist.get_rank(group) >= 0:
        # dist.set_timeout() is missing before PyTorch 2.15.
        group._get_backend(torch.device("cpu"))._set_default_timeout(PATIENT_TIMEOUT)
    return group


def tensor_parallel_size(config: TrainConfig, role: ProcessRole) -> int:
    """
    Raises:
        InvalidSetting: if tensor_parallel does not divide the processes of a pod.
    """
    if role.local_world_size % config.tensor_parallel:
        raise InvalidSetting(
            f"train.tensor_parallel must divide the {role.local_world_size} processes of a pod, not "
            f"{config.tensor_parallel}"
        )
    return config.tensor_parallel


def collective_timeout(config: TrainConfig) -> timedelta:
    """Return a timeout longer than the watchdog's, even for the first step: a collective that times out aborts the
    process, and only the watchdog reports where it was."""
    return timedelta(seconds=FIRST_STEP_FACTOR * PEERS_FACTOR * config.nccl_timeout_seconds)


def leave(group: Group) -> None:
    with annotating_errors(lambda: "at the end"):
        dist.barrier(group.patient)
    dist.destroy_process_group()


def choose_device(config: TrainConfig, role: ProcessRole) -> torch.device:
    """Return this process's GPU, or the CPU if it has none. Also limit the threads to those it may use."""
    torch.set_num_threads(threads_of(role))
    use_tf32(config)
    if not torch.cuda.is_available():
        return torch.device("cpu")
    device = torch.device("cuda", role.local_rank)
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True  # all inputs have the same size
    return device
