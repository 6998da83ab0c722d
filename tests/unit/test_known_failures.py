"""Known errors of libraries and the OS are explained in a sentence. Unknown errors are left unchanged."""

import errno
import subprocess
import sys
from pathlib import Path

import pytest

from kubetrain_trainer.durable_files import append, with_filename
from kubetrain_trainer.failures import annotating_errors, explain, is_mistake, own_line


def test_out_of_memory_says_what_was_being_done() -> None:
    error = RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 4 bytes")
    with pytest.raises(RuntimeError), annotating_errors(lambda: "in step 3, with batch_size=8"):
        raise error
    known = explain(error)
    assert str(known).startswith(
        "out of memory in step 3, with batch_size=8: lower train.batch_size, raise train.gradient_accumulation, set"
    )
    assert known is not None
    assert not known.is_curable
    assert str(explain(MemoryError())).startswith("out of memory at the start: ")


def test_a_missing_compiler_is_reported_with_how_to_get_it() -> None:
    error = RuntimeError("InvalidCxxCompiler: No working C++ compiler found in torch._inductor.config.cpp.cxx")
    assert 'build the image with SYSTEM_PACKAGES="g++"' in str(explain(error))


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("Expected to have finished reduction in the prior iteration before", "set find_unused_parameters=True"),
        ("Your training graph has changed in this iteration, e.g.", "set static_graph=False"),
        ("view size is not compatible with input tensor's size and stride", "memory_format=torch.contiguous_format"),
    ],
)
def test_a_model_that_needs_another_field_of_its_task_is_told_which(message: str, remedy: str) -> None:
    known = explain(RuntimeError(message))
    assert known is not None
    assert remedy in str(known)
    assert not known.is_curable


@pytest.mark.parametrize(
    "message",
    [
        "[GLOO/transport/tcp/pair.cc:561] Connection closed by peer [127.0.0.1]:20387. This is typically caused by a",
        "[GLOO/transport/tcp/pair.cc:545] Read error [127.0.0.1]:41864: Connection reset by peer. This is typically",
        "[GLOO/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete",
    ],
)
def test_a_lost_peer_is_not_blamed_on_the_settings(message: str) -> None:
    known = explain(RuntimeError(message.replace("GLOO", "/__w/pytorch/pytorch/third_party/gloo/gloo")))
    assert known is not None
    assert known.is_curable
    assert "look for the one that failed first" in str(known)


@pytest.mark.parametrize(
    ("message", "cause", "is_curable"),
    [
        (
            "[enforce fail at GLOO/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: eth7",
            "the network interface in GLOO_SOCKET_IFNAME was not found at the start: remove the variable, or",
            False,
        ),
        (
            "Gloo connectFullMesh failed with [GLOO/transport/tcp/pair.cc:152] timed out connecting: SO_ERROR: "
            "Connection refused, remote=[127.0.0.1]:13201",
            "the processes could not reach each other at the start: ",
            True,
        ),
        (
            "Gloo connectFullMesh failed with [GLOO/transport/tcp/pair.h:311] Connect timeout [none]",
            "the processes could not reach each other at the start: ",
            True,
        ),
        (
            "[enforce fail at GLOO/transport/tcp/socket.cc:142] rv != -1. -1 vs -1. connect: Network is unreachable",
            "the processes could not reach each other at the start: ",
            True,
        ),
    ],
)
def test_processes_that_never_met_were_not_lost(message: str, cause: str, is_curable: bool) -> None:
    known = explain(RuntimeError(message.replace("GLOO", "/__w/pytorch/pytorch/third_party/gloo/gloo")))
    assert known is not None
    assert str(known).startswith(cause)
    assert known.is_curable is is_curable


def test_an_unknown_error_of_gloo_is_not_taken_for_a_lost_process() -> None:
    assert explain(RuntimeError("[/gloo/gloo/transport/tcp/listener.cc:44] bind: Address already in use")) is None


def test_a_full_disk_is_reported_with_the_file_which_the_os_error_lacks(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left") as caught:
        append(path, b"text")
    assert str(explain(caught.value)) == (
        f"cannot use {path} (No space left on device): free space on this volume or enlarge it, "
        "then start this run again"
    )


def test_the_os_error_behind_a_librarys_error_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "export"
    with pytest.raises(RuntimeError) as caught, with_filename(path):
        try:
            raise OSError(errno.EDQUOT, "as the library puts it")
        except OSError as error:
            raise RuntimeError("unexpected position") from error
    assert str(explain(caught.value)).startswith(
        f"cannot use {path} (Disk quota exceeded): free space under this quota"
    )


@pytest.mark.parametrize(
    "error",
    [ValueError("of the user's own"), OSError(errno.ENOSPC, "of no file"), FileNotFoundError(errno.ENOENT, "", "file")],
)
def test_an_unknown_error_has_no_explanation(error: Exception) -> None:
    assert explain(error) is None


@pytest.mark.parametrize(
    ("raised", "last_line", "has_traceback"),
    [
        ("MemoryError('of 3 bytes')", "error: out of memory at the start: lower train.batch_size", False),
        ("ValueError('of the user')", "error: ValueError: of the user", True),
    ],
)
def test_a_program_ends_with_the_explanation(raised: str, last_line: str, has_traceback: bool) -> None:
    program = f"from kubetrain_trainer.processes.entry_point import run\ndef program(): raise {raised}\nrun(program)"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=90, check=False)
    assert ended.returncode == 1
    assert ended.stdout.splitlines()[-1].startswith(last_line)
    assert ("Traceback" in ended.stderr) == has_traceback


@pytest.mark.parametrize(
    ("error", "where", "again"),
    [
        (TypeError("loss() takes 1 positional argument"), "at the start, with batch_size=8", True),
        (AttributeError("no attribute 'lables'"), "in the first step, with batch_size=8", True),
        (AttributeError("no attribute 'read'"), "in step 2, with batch_size=8", False),
        (RuntimeError("Connection reset by peer"), "at the start, with batch_size=8", False),
        (TypeError("in a script of your own, at any time"), "", False),
    ],
)
def test_a_mistake_in_a_program_before_its_first_step_would_be_made_again(
    error: Exception, where: str, again: bool
) -> None:
    if where:
        error.add_note(where)
    assert is_mistake(error) is again


def test_the_own_line_that_failed_is_named() -> None:
    try:
        Path(None)  # type: ignore[arg-type]
    except TypeError as error:
        assert own_line(error).startswith(" (test_known_failures.py, line ")
    assert own_line(TypeError("never raised")) == ""
