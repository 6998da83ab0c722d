"""What the operating system and the frameworks fail with, as one sentence with the remedy."""

import contextlib
import errno
import os
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kubetrain_trainer.errors import KubetrainError

DISK_REMEDIES = {
    errno.ENOSPC: "free space on this volume or enlarge it",
    errno.EDQUOT: "free space under this quota or raise it",
    errno.EFBIG: "raise the limit on the size of files",
    errno.EROFS: "mount this volume for writing",
    errno.EACCES: "let this user read and write there",
}


class TransientFailure(KubetrainError):
    """What another try may not meet."""

    is_curable = True


@dataclass(frozen=True)
class Known:
    words: tuple[str, ...]
    """One of them is in the error's text: what a loading process or a library raised arrives as that."""
    sentence: str
    kind: type[KubetrainError] = KubetrainError


KNOWN = (
    Known(
        ("</torch_", "killed by signal: Bus error"),
        "shared memory is full {where}, by which loading processes pass on their batches: give each pod a larger "
        "/dev/shm (mount an emptyDir of medium Memory there), or lower loader_workers",
    ),
    Known(
        ("killed by signal: Killed", "exited unexpectedly", "multiprocessing/resource_sharer.py"),
        "a process that loads data was ended {where}, most likely for want of memory: give each pod more memory, or "
        "lower loader_workers",
        TransientFailure,
    ),
    Known(
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
        "out of memory {where}: lower batch_size, raise accumulate, set precision=bf16, or give each pod more memory "
        "(or a GPU that has more)",
    ),
    Known(
        ("InvalidCxxCompiler", "Failed to find C compiler"),
        'compile finds no C++ compiler {where}: build the image with SYSTEM_PACKAGES="g++", or set compile to false',
    ),
    Known(
        ("/gloo/", "ncclRemoteError", "Collective ops is aborted"),
        "another process was lost {where}: look for the one that failed first",
        TransientFailure,
    ),
)


@contextlib.contextmanager
def annotating_errors(where: Callable[[], str]) -> Iterator[None]:
    """Note with an error what was being done: it becomes a sentence where nobody knows any more."""
    try:
        yield
    except Exception as error:
        error.add_note(where())
        raise


def in_words(error: Exception) -> KubetrainError | None:
    """The sentence for an error that is known."""
    notes = getattr(error, "__notes__", [])
    where = notes[0] if notes else "at the start"
    text = _text(error)
    for known in KNOWN:
        if any(words in text for words in known.words):
            return known.kind(known.sentence.format(where=where))
    return _storage(error)


def _text(error: Exception) -> str:
    """All that is known of an error: what it says, and the files that it went through."""
    said = [f"{type(each).__name__}: {each}" for each in _with_causes(error)]
    return "\n".join([*said, *(frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))])


def _storage(error: Exception) -> KubetrainError | None:
    cause = os_error_behind(error)
    if cause is None or not cause.filename or cause.errno not in DISK_REMEDIES:
        return None
    return KubetrainError(f"cannot use {cause.filename} {disk_trouble(cause)}, then start this run again")


def disk_trouble(error: OSError) -> str:
    """What the operating system says, and what to do."""
    number = error.errno or 0
    return f"({os.strerror(number)}): {DISK_REMEDIES.get(number, 'see to this volume')}"


def os_error_behind(error: BaseException) -> OSError | None:
    """The operating system's error behind what a library made of it."""
    return next((each for each in _with_causes(error) if isinstance(each, OSError)), None)


def _with_causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
