"""The processes that train together, as one of them sees them: the same methods with every framework."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.process_role import ProcessRole

Decision = TypeVar("Decision")


class ProcessGroup(Protocol):
    """All processes must call the methods that exchange values in the same order: each call waits for all of them."""

    role: ProcessRole

    @property
    def replicas(self) -> int:
        """The number of copies of the model, over all processes."""
        return self.role.world_size

    def describe(self, config: TrainConfig) -> str:
        """Return the line that says what trains, and on which hardware."""

    def from_chief(self, decide: Callable[[], Decision]) -> Decision:
        """Return the chief's decision in every process: on shared storage, each could see a different state."""

    def sum(self, values: list[float]) -> list[float]:
        """Return each value's sum over all processes."""

    def gather(self, value: float) -> list[float]:
        """Return the value of each process, by rank: a sum to which each process adds zeros for the others."""
        return self.sum([value if rank == self.role.rank else 0.0 for rank in range(self.role.world_size)])

    def broadcast_statistics(self, model: Any) -> None:
        """Give every replica the chief's running statistics, which are what is evaluated and saved."""

    def read_numbers(self, numbers: Sequence[Any]) -> list[float]:
        """Copy numbers from this process's device, for which the host waits."""

    def gpu_memory_peak(self) -> int:
        """Return the peak GPU memory of this process in bytes; 0 without a GPU."""
