"""A sample of the Python stack, to tell a process that hangs from one that waits for others."""

import sys
import sysconfig
import threading
import traceback
from dataclasses import dataclass

COLLECTIVES = (
    "torch/distributed/",
    "torch/nn/parallel/distributed.py",
    "torch/autograd/graph.py",
    "kubetrain_trainer/pytorch_ddp/group.py",
    "tensorflow/python/eager/execute.py",
    "tensorflow/python/framework/ops.py",
)
"""Python files in which a process waits for other processes or a GPU."""
GPU_CALLS = ("-packages/torch", "kubetrain_trainer/pytorch_ddp/")
"""On a GPU, these too. The host runs ahead and, once the GPU's queue is full, waits in the next call that uses it."""
PY_FUNCTION = "tensorflow/python/ops/script_ops.py"
"""The file in which another thread runs a user's Python function while the main thread waits for it."""
LIBRARIES = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"), "<frozen")


@dataclass(frozen=True)
class Call:
    function: str
    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(self.file.split('/')[-2:])}:{self.line})"


@dataclass(frozen=True)
class StackSample:
    calls: tuple[Call, ...]
    """The calls on the stack, the innermost first."""
    on_gpu: bool = False
    is_alone: bool = False
    """True if no other process trains."""

    @property
    def is_waiting(self) -> bool:
        """Return True if the process waits for its GPU or for another process, which may be the one that hangs."""
        waits = any(name in self.calls[0].file for name in (*COLLECTIVES, *(GPU_CALLS if self.on_gpu else ())))
        return waits and (self.on_gpu or not self.is_alone)

    def __str__(self) -> str:
        """Return the innermost call and the innermost call outside of libraries."""
        own = next((call for call in self.calls if not call.file.startswith(LIBRARIES)), self.calls[0])
        text = str(self.calls[0]) + (f", called by {own}" if own != self.calls[0] else "")
        return text + f", where {self._waiting()}" * self.is_waiting

    def _waiting(self) -> str:
        if self.is_alone:
            return "it waits for its GPU: something that it started there does not end"
        waits = "processes wait for each other" + " or for their GPU" * self.on_gpu
        return f"{waits}: look for another process that hangs"


def sample_stack(*, on_gpu: bool, is_alone: bool) -> StackSample:
    """Sample the stack of the thread that does the training's current work."""
    main = threading.main_thread().ident or 0
    stacks = {
        # Without source lines, because reading them could hang on the same storage.
        ident: tuple(
            Call(each.f_code.co_name, each.f_code.co_filename, line) for each, line in traceback.walk_stack(frame)
        )
        for ident, frame in sys._current_frames().items()
    }
    in_py_function = (stack for stack in stacks.values() if any(PY_FUNCTION in call.file for call in stack))
    return StackSample(next(in_py_function, stacks[main]), on_gpu, is_alone)
