"""Trainings that hang before their first step: each ends within its limit, and says where."""

import re
from pathlib import Path

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.termination import LOG_VARIABLE, parse_termination_message
from support.faulty_tasks import FAULTY_TASKS
from support.process_groups import start, start_python, tf_config, torchrun_variables
from support.tiers import ONE_IN_CI

pytestmark = pytest.mark.slow
TRAIN = ("--data-dir", ".", "--output-dir", "output", "--metrics-port", "0")
LAUNCHER = ("-m", "kubetrain_trainer.pytorch_ddp.launching.launch", "--standalone", "--nproc-per-node", "2")
SHORT_START = (
    "from kubetrain_trainer.processes import watchdog\nwatchdog.START_FACTOR = 2\nwatchdog.BACKSTOP_SECONDS = 1\n"
)
LEAVES_AT_ONCE = "import os, torch.distributed as dist\ndist.init_process_group('gloo')\nos._exit(9)"
HOLDS_GIL = "import ctypes\ndef build(config, data_dir):\n    ctypes.PyDLL(None).sleep(1000)\n"


def reported(folder: Path, rank: int = 0) -> str:
    return str(parse_termination_message((folder / f"message-{rank}").read_text()).get("error"))


def prepare(folder: Path, task: str) -> None:
    (folder / "own.py").write_text(task)
    (folder / "sitecustomize.py").write_text(SHORT_START)
    for rank in range(2):
        (folder / f"message-{rank}").touch()


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_process_that_hangs_while_it_builds_the_model_is_named(framework: str, tmp_path: Path) -> None:
    prepare(tmp_path, FAULTY_TASKS[framework])
    hang = '{"trouble": "hang", "place": "build", "rank": 1, "after": 1}'
    task = ("--model", "own:build", "--metric", "loss", "--model-args", hang, "--nccl-timeout-seconds", 4)
    ports, processes = free_ports(2), []
    for rank in range(2):
        place = torchrun_variables(ports, rank) if framework == "pytorch" else {"TF_CONFIG": tf_config(ports, rank)}
        place[LOG_VARIABLE] = str(tmp_path / f"message-{rank}")
        processes.append(start_python("-m", f"{package_of(framework)}.train", *TRAIN, *task, cwd=tmp_path, **place))
    waiting, hung = (process.communicate(timeout=100)[0] for process in processes)
    assert processes[1].returncode == 134, hung
    assert re.match(r"rank 1 hangs: the start did not end within 8 s .* it is in stand_still \(", reported(tmp_path, 1))
    assert processes[0].returncode in (1, 134), waiting
    assert re.search("look for (the one that failed|one that failed|another process that hangs)", reported(tmp_path))


@pytest.mark.thorough
def test_a_process_that_is_lost_while_they_meet_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "message-0").touch()
    (port,) = free_ports(1)
    train = ("-m", "kubetrain_trainer.pytorch_ddp.train", *TRAIN, "--data", "synthetic", "--nccl-timeout-seconds", 3)
    first = {**torchrun_variables([port], 0), LOG_VARIABLE: str(tmp_path / "message-0")}
    waiting = start_python(*train, cwd=tmp_path, **first)
    lost = start(LEAVES_AT_ONCE, tmp_path, **torchrun_variables([port], 1))
    printed = waiting.communicate(timeout=100)[0]
    assert (lost.wait(), waiting.returncode) == (9, 1), printed
    assert "at the start: look for one that failed at the same time" in reported(tmp_path), printed


@pytest.mark.thorough
def test_a_process_that_holds_the_gil_while_it_builds_the_model_is_named(tmp_path: Path) -> None:
    prepare(tmp_path, HOLDS_GIL)
    train = ("-m", "kubetrain_trainer.pytorch_ddp.train", *TRAIN, "--model", "own:build", "--nccl-timeout-seconds", 3)
    environment = {LOG_VARIABLE: str(tmp_path / "message-0")}
    launched = start_python(*LAUNCHER, *train, cwd=tmp_path, **environment)
    printed = launched.communicate(timeout=100)[0]
    assert launched.returncode == 142, printed
    assert re.match(r"rank \d hangs: C code has held Python's lock \(GIL\)", reported(tmp_path))
    assert re.search(r'File ".*own\.py", line 3 in build', printed)
