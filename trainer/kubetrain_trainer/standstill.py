"""Where a process stands, as far as Python sees: in its own work, or waiting for others."""

import sys
import sysconfig
import threading
import traceback
from dataclasses import dataclass

EXCHANGES = (
    "torch/distributed/",
    "torch/nn/parallel/distributed.py",
    "torch/autograd/graph.py",
    "kubetrain_trainer/pytorch_ddp/group.py",
    "tensorflow/python/eager/execute.py",
    "tensorflow/python/framework/ops.py",
)
"""The files of Python's in which processes wait for one another, or for a GPU."""
PYTHON_IN_A_GRAPH = "tensorflow/python/ops/script_ops.py"
"""A thread there runs a user's function, and the main thread waits for it."""
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")


@dataclass(frozen=True)
class Call:
    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


@dataclass(frozen=True)
class Standstill:
    calls: tuple[Call, ...]
    """The innermost first."""

    @property
    def is_wait(self) -> bool:
        """Whether the process may be all right, and wait for another one."""
        return any(name in self.calls[0].file for name in EXCHANGES)

    def __str__(self) -> str:
        """The innermost call, and the one that is no library's."""
        own = next((call for call in self.calls if not call.file.startswith(LIBRARIES)), self.calls[0])
        text = str(self.calls[0]) + (f", called by {own}" if own != self.calls[0] else "")
        return text + ", where processes wait for one another: look for another that hangs" * self.is_wait


def find_standstill() -> Standstill:
    """Of the thread that the training waits for."""
    main = threading.main_thread().ident or 0
    stacks = {
        # Source lines would be read from storage, which may be what hangs.
        ident: tuple(
            Call(each.f_code.co_name, each.f_code.co_filename, line) for each, line in traceback.walk_stack(frame)
        )
        for ident, frame in sys._current_frames().items()
    }
    in_a_graph = (stack for stack in stacks.values() if any(PYTHON_IN_A_GRAPH in call.file for call in stack))
    return Standstill(next(in_a_graph, stacks[main]))
