"""The launch program prints NCCL's warnings, and keeps the rest of its log out of the pod's log."""

from pathlib import Path

import pytest

from support.process_groups import start_python
from support.provoked import NCCL

KILLED = NCCL.replace("raise SystemExit(failed)", "os.kill(os.getpid(), 9)")
WARNING = "NCCL WARN Bootstrap : no socket interface found"


def launched(folder: Path, program: str, **environment: str) -> str:
    """Return what a pod prints whose process finds no interface for NCCL."""
    (folder / "program.py").write_text(program)
    launch = (
        "-m",
        "kubetrain_trainer.pytorch_ddp.launching.launch",
        "--standalone",
        "--nproc-per-node",
        1,
        "program.py",
    )
    (folder / "tmp").mkdir()
    process = start_python(*launch, cwd=folder, NCCL_SOCKET_IFNAME="eth7", TMPDIR=str(folder / "tmp"), **environment)
    printed, _ = process.communicate(timeout=170)
    assert process.returncode != 0, printed
    assert list((folder / "tmp").iterdir()) == [], "torchrun would leave its folders of logs"
    return printed


@pytest.mark.slow
@pytest.mark.parametrize("environment", [{}, {"NCCL_DEBUG": "WARN"}], ids=["unset", "as network sets it"])
def test_a_warning_is_printed_without_the_rest(environment: dict[str, str], tmp_path: Path) -> None:
    printed = launched(tmp_path, NCCL, **environment)
    assert printed.count(WARNING) == 1
    assert "NCCL INFO" not in printed


@pytest.mark.slow
def test_the_last_warning_of_a_killed_process_is_printed(tmp_path: Path) -> None:
    printed = launched(tmp_path, KILLED)
    assert printed.count(WARNING) == 1
    assert "ended with exit code 137" in printed


@pytest.mark.slow
def test_what_you_chose_to_log_is_logged_as_ever(tmp_path: Path) -> None:
    assert "NCCL INFO" in launched(tmp_path, NCCL, NCCL_DEBUG="INFO")
