"""A process that hangs is ended, except during pauses."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kubetrain_trainer.processes.watchdog import Call, StackSample
from kubetrain_trainer.termination import LOG_VARIABLE, parse_termination_message

PROGRAM = """
import ctypes, signal, threading, time
from kubetrain_trainer.processes import watchdog
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.processes.process_role import ProcessRole

watchdog.START_FACTOR = 2
watchdog.PEERS_FACTOR = 30

def stand_still():
    time.sleep(20)

def keep_the_lock():
    ctypes.PyDLL(None).sleep(20)

with watchdog.Watchdog(TrainConfig(nccl_timeout_seconds=1), ProcessRole(rank=3, world_size=4)) as dog:
{body}
assert signal.getitimer(signal.ITIMER_REAL) == (0, 0), "an alarm would end the process later"
time.sleep(1.2)  # rank 0 exports
print("well ended")
"""


def run(tmp_path: Path, *body: str) -> tuple[int, str, dict[str, object]]:
    file = tmp_path / "message"
    file.write_text("")
    program = PROGRAM.format(body="\n".join(f"    {line}" for line in body))
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": ":".join(sys.path), LOG_VARIABLE: str(file)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )
    return ended.returncode, ended.stdout, parse_termination_message(file.read_text())


@pytest.mark.parametrize(
    ("before", "doing"),
    [
        ("dog.beat('step 7')", "step 7 did not end within 1 s"),
        pytest.param("pass", "the start did not end within 2 s", marks=pytest.mark.slow),
        pytest.param("with dog.paused(): pass", "the start did not end within 2 s", marks=pytest.mark.slow),
    ],
)
def test_a_process_that_hangs_is_ended_and_reports_where(before: str, doing: str, tmp_path: Path) -> None:
    exit_code, log, message = run(tmp_path, before, "stand_still()")
    assert exit_code == 134
    assert 'File "<string>", line 11 in stand_still' in log
    assert message == {
        "status": "failed",
        "curable": True,
        "error": f"rank 3 hangs: {doing} (train.nccl_timeout_seconds); it is in stand_still (<string>:11), "
        "all stacks are in the log",
    }


def test_a_start_may_take_as_long_as_it_computes(tmp_path: Path) -> None:
    listing = "begun = time.monotonic()\n    while time.monotonic() < begun + 3: time.sleep(0.05); sum(range(99999))"
    exit_code, log, message = run(tmp_path, listing, "stand_still()")
    assert exit_code == 134
    assert "rank 3 hangs: the start did not end within 2 s" in str(message["error"])
    assert "in stand_still" in log, "only what follows it hangs"


@pytest.mark.slow
@pytest.mark.parametrize("before", ["dog.beat('step 7')", "dog.beat('step 7')\n    with dog.paused(): time.sleep(0.3)"])
def test_a_process_that_holds_the_gil_is_ended_with_its_stack(before: str, tmp_path: Path) -> None:
    soon = ("watchdog.PEERS_FACTOR = 1.25", "watchdog.BACKSTOP_SECONDS = 0.5")
    exit_code, log, _ = run(tmp_path, *soon, before, "keep_the_lock()")
    assert exit_code == -signal.SIGALRM, "more than 128, as Kubernetes counts: it may be tried again"
    assert 'File "<string>", line 14 in keep_the_lock' in log


def test_a_late_process_that_moves_gets_more_time(tmp_path: Path) -> None:
    moving = "while time.monotonic() < begun + 1.6: exec(line.replace(co_firstlineno=next(numbers)))"
    line = "compile('for _ in range(99): sum(range(999))', 'own.py', 'exec')"  # long, so that each sample is within it
    begun = ("import itertools", f"line, numbers = {line}, itertools.count()")
    body = (*begun, "dog.beat('step 7')", "begun = time.monotonic()", "time.sleep(0.5)", moving, "dog.beat('8')")
    exit_code, log, message = run(tmp_path, *body)
    assert (exit_code, message) == (0, {})
    assert log.endswith("well ended\n")
    assert log.count("rank 3 has not ended step 7 within 1 s; its stacks:\n") == 1


@pytest.mark.slow
def test_a_late_process_that_waits_for_others_is_not_ended_before_them(tmp_path: Path) -> None:
    waiting = "exec(compile('time.sleep(1.4)', 'torch/distributed/wait.py', 'exec'))"
    exit_code, log, message = run(tmp_path, f"for step in 7, 8: dog.beat(f'step {{step}}'); {waiting}")
    assert (exit_code, message) == (0, {})
    for step in (7, 8):
        assert log.count(f"rank 3 has not ended step {step} within 1 s; its stacks:\n") == 1


@pytest.mark.slow
def test_a_pause_may_take_as_long_as_needed(tmp_path: Path) -> None:
    beats = "for step in range(8): dog.beat('step'); time.sleep(0.3)"
    exit_code, log, message = run(tmp_path, beats, "with dog.paused(): time.sleep(2.5)", "time.sleep(0.5)")
    assert (exit_code, log, message) == (0, "well ended\n", {})


@pytest.mark.parametrize("file", ["torch/nn/modules/conv.py", "torch/optim/sgd.py", "torchvision/models/resnet.py"])
def test_on_a_gpu_a_process_may_wait_in_any_call_of_torch(file: str) -> None:
    convolving = Call("_conv_forward", f"/usr/lib/python3/dist-packages/{file}", 12)
    sleeping = Call("loss", "/code/own.py", 34)
    assert StackSample((convolving, sleeping), on_gpu=True).is_waiting
    assert "or for their GPU: look for another process" in str(StackSample((convolving, sleeping), on_gpu=True))
    alone = StackSample((convolving, sleeping), on_gpu=True, is_alone=True)
    assert str(alone).endswith("it waits for its GPU: something that it started there does not end")
    assert not StackSample((convolving, sleeping)).is_waiting, "on a CPU it computes there, or hangs"
    assert not StackSample((sleeping, convolving), on_gpu=True).is_waiting


def test_a_stack_sample_names_the_call_and_whether_it_waits_for_others() -> None:
    sleeping = Call("wait", "/usr/lib/torch/distributed/distributed_c10d.py", 12)
    own = Call("train", "/code/train.py", 34)
    waiting = StackSample((sleeping, own))
    assert waiting.is_waiting
    assert not StackSample((own, sleeping)).is_waiting
    assert not StackSample((sleeping, own), is_alone=True).is_waiting, "there is nobody to wait for"
    assert str(StackSample((own,))) == "train (code/train.py:34)"
    assert "look for another process that hangs" in str(waiting)
    connecting = Call("connect", subprocess.__file__, 1)
    assert str(StackSample((connecting, own))).endswith("subprocess.py:1), called by train (code/train.py:34)")
