"""Known failures of the operating system and the frameworks, explained in one sentence with the fix."""

from __future__ import annotations

import contextlib
import errno
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kubetrain_trainer.errors import KubetrainError

DISK_REMEDIES = {
    errno.ENOSPC: "free space on this volume or enlarge it",
    errno.EDQUOT: "free space under this quota or raise it",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EROFS: "mount this volume for writing",
    errno.EACCES: "give this user permission to read and write",
}


class TransientFailure(KubetrainError):
    """A failure that may not happen again on a retry."""

    is_curable = True


@dataclass(frozen=True)
class KnownFailure:
    name: str
    """The name of the rule by which `kubetrain diagnose` recognizes it in a log."""
    patterns: tuple[str, ...]
    """Strings to look for in the error's text, because errors of libraries and loading processes often have no type."""
    sentence: str
    kind: type[KubetrainError] = KubetrainError


MISTAKES = (TypeError, AttributeError, NameError, ImportError, NotImplementedError, SyntaxError, UserWarning)
"""Errors in a program, which fails in the same way again if it failed before it had taken a step."""
STORE_LOST = ("DistNetworkError", "DistStoreError", "RendezvousConnectionError")
"""Errors of processes that have lost the store of PyTorch, which is in the first pod."""
WITHOUT_GPU = ("Found no NVIDIA driver", "not compiled with CUDA", "CUDA is not available", "requires CUDA")
"""Parts of errors of a program that needs GPUs in a pod without them."""
LOST_ANOTHER = "another process was lost"
"""The beginning of the error of a process that failed because another one did."""
PEER_LOST, AFTER_THE_END = "peer-lost", "after those of this pod had ended"
IN_VAIN = "the others had ended, and would not start again with it"
AT_THE_START, FIRST_STEP = "at the start", "the first step"
LIBRARIES = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), str(Path(__file__).parent))

KNOWN_FAILURES = (
    KnownFailure(
        "shared-memory",
        ("</torch_", "killed by signal: Bus error"),
        "shared memory, through which data loading processes pass their batches, is full {where}: give each pod a "
        "larger /dev/shm (mount an emptyDir of medium Memory there), or lower train.loader_workers",
    ),
    KnownFailure(
        "loader-exited",
        ("exited unexpectedly with exit code",),
        "a data loading process ended by itself {where}: read its own error, which is before this one in the log, or "
        "set train.loader_workers=0, which loads data in the process itself",
    ),
    KnownFailure(
        "loader-killed",
        ("killed by signal: Killed", "exited unexpectedly", "multiprocessing/resource_sharer.py"),
        "a data loading process was killed {where}, probably because memory ran out: give each pod more memory, or "
        "lower train.loader_workers",
        TransientFailure,
    ),
    KnownFailure(
        "out-of-memory",
        (
            "MemoryError",
            "OutOfMemoryError",
            "DefaultCPUAllocator: can't allocate memory",
            "OOM when allocating",
            "Cannot allocate memory",
            "Cuda failure 2 'out of memory'",
            "_STATUS_ALLOC_FAILED",
            "std::bad_alloc",
        ),
        "out of memory {where}: lower train.batch_size, raise train.gradient_accumulation, set train.precision=bf16, "
        "or give each pod more memory (or a larger GPU)",
    ),
    KnownFailure(
        "no-compiler",
        ("InvalidCxxCompiler", "Failed to find C compiler"),
        'no C++ compiler was found {where}: build the image with SYSTEM_PACKAGES="g++", or leave out train.compile',
    ),
    KnownFailure(
        "unused-parameter",
        ("Expected to have finished reduction in the prior iteration",),
        "a parameter of the model took no part in the loss {where}: set find_unused_parameters=True in the Task, or "
        "freeze the parameters that no step uses",
    ),
    KnownFailure(
        "changed-graph",
        ("Your training graph has changed in this iteration",),
        "a step computed other operations than the first one {where}: set static_graph=False in the Task",
    ),
    KnownFailure(
        "memory-format",
        ("view size is not compatible with input tensor's size and stride",),
        "the model uses view() on a tensor of another memory format {where}: use reshape() instead, or set "
        "memory_format=torch.contiguous_format in the Task",
    ),
    KnownFailure(
        "wrong-interface",
        ("Unable to find address for: ",),
        "the network interface in GLOO_SOCKET_IFNAME was not found {where}: remove the variable, or name an interface "
        "that `ip -brief address` lists in the pod",
    ),
    KnownFailure(
        "unreachable",
        ("Gloo connectFullMesh failed with ", "/gloo/transport/tcp/socket.cc", "DistStoreError: "),
        "the processes could not reach each other {where}: look for one that failed at the same time; if "
        "there is none, set GLOO_SOCKET_IFNAME to the interface by which the pods reach each other, or let "
        "NetworkPolicies allow all ports between the pods of a job",
        TransientFailure,
    ),
    KnownFailure(
        PEER_LOST,
        (
            "/gloo/transport/tcp/pair.cc",
            "/gloo/transport/tcp/unbound_buffer.cc",
            "ncclRemoteError",
            "Collective ops is aborted",
        ),
        f"{LOST_ANOTHER} {{where}}: look for the one that failed first",
        TransientFailure,
    ),
)


@contextlib.contextmanager
def annotating_errors(where: Callable[[], str]) -> Iterator[None]:
    """Add a note to errors that says when they happened, such as "in step 7". explain() quotes it."""
    try:
        yield
    except Exception as error:
        error.__notes__ = [*getattr(error, "__notes__", []), where()]  # add_note() is new in Python 3.11
        raise


def explain(error: Exception) -> KubetrainError | None:
    """Return a known error with its explanation, or None if the error is unknown."""
    notes = getattr(error, "__notes__", [])
    where = notes[0] if notes else AT_THE_START
    text = _text(error)
    for known in KNOWN_FAILURES:
        if any(pattern in text for pattern in known.patterns):
            return known.kind(known.sentence.format(where=where))
    return _explain_storage(error)


def is_of_lost_process(text: str) -> bool:
    """Return True for the text of an error by which a process says that another one was lost."""
    (known,) = (failure.patterns for failure in KNOWN_FAILURES if failure.name == PEER_LOST)
    return any(pattern in text for pattern in (*known, *STORE_LOST))


def is_mistake(error: Exception) -> bool:
    """Return True if the program would fail in the same way again."""
    notes = getattr(error, "__notes__", [""])
    is_of_program = isinstance(error, MISTAKES) or any(part in str(error) for part in WITHOUT_GPU)
    return is_of_program and notes[0].startswith((AT_THE_START, f"in {FIRST_STEP}"))


def own_line(error: BaseException) -> str:
    """Return the line of your own code that failed, such as " (task.py, line 12)"; empty if it was in a library's."""
    lines = [(frame.f_code.co_filename, number) for frame, number in traceback.walk_tb(error.__traceback__)]
    own = [line for line in lines if not line[0].startswith("<") and not any(part in line[0] for part in LIBRARIES)]
    return f" ({Path(own[-1][0]).name}, line {own[-1][1]})" if own else ""


def _text(error: Exception) -> str:
    """Return the messages of an error and its causes, and the files in its traceback."""
    messages = [f"{type(cause).__name__}: {cause}" for cause in _cause_chain(error)]
    return "\n".join([*messages, *(frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))])


def _explain_storage(error: Exception) -> KubetrainError | None:
    cause = os_error_behind(error)
    if cause is None or not cause.filename or cause.errno not in DISK_REMEDIES:
        return None
    return KubetrainError(f"cannot use {cause.filename} {describe_os_error(cause)}, then start this run again")


def describe_os_error(error: OSError) -> str:
    """Return the OS's message and the fix."""
    number = error.errno or 0
    return f"({os.strerror(number)}): {DISK_REMEDIES.get(number, 'check this volume')}"


def os_error_behind(error: BaseException) -> OSError | None:
    """Return the OS error that caused a library's error, if there is one."""
    return next((cause for cause in _cause_chain(error) if isinstance(cause, OSError)), None)


def _cause_chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
