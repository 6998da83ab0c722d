"""Several processes of a script of your own that write one model or one checkpoint together."""

import json
import signal
import subprocess
from pathlib import Path

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from support.process_groups import start_python, torchrun_variables

PARTS = """
import os, time
from pathlib import Path

rank, export = os.environ["RANK"], Path(os.environ["KUBETRAIN_OUTPUT"], "export")
if rank == "0":
    (export.parent / "begun").touch()
while not (export.parent / "begun").exists():
    time.sleep(0.1)
(export / f"temporary-{rank}").touch()
while not any(export.glob("*-1")):
    time.sleep(0.1)
if rank == "1":
    time.sleep(60 if os.path.exists("slow") else 1)
(export / f"temporary-{rank}").rename(export / f"part-{rank}")
"""
COLLECTIVE = """
import os
from pathlib import Path
from torch import distributed as dist
from kubetrain_trainer import session
from kubetrain_trainer.stop_signal import MARKS_VARIABLE, is_saving

dist.init_process_group("gloo")
rank = os.environ["RANK"]
marks = os.environ[MARKS_VARIABLE] = f"marks-{rank}"
os.mkdir(marks)

def write(folder):
    assert is_saving(Path(marks), os.getpid())
    dist.barrier()  # as libraries do that save by all processes together
    (folder / f"part-{rank}").write_text(rank)

session.save(1, write, {"accuracy": 0.5}, collective=True)
session.finish(write, collective=True)
"""


def pair(folder: Path, script: str) -> list["subprocess.Popen[str]"]:
    (folder / "train.py").write_text(script)
    ports = free_ports(1)
    program = ("-u", "-m", "kubetrain_trainer.pytorch_ddp.own_code", "--data-dir", "/data", "--metrics-port", "0")
    arguments = (*program, "--output-dir", folder / "run", "--entry", json.dumps({"script": "train.py"}))
    return [start_python(*arguments, cwd=folder, **torchrun_variables(ports, rank)) for rank in range(2)]


def outputs(processes: list["subprocess.Popen[str]"]) -> list[str]:
    try:
        return [process.communicate(timeout=60)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()


def test_the_model_has_the_parts_of_every_process_and_no_temporary_files(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".ended-1").touch()  # of an attempt that was killed
    processes = pair(tmp_path, PARTS)
    logs = outputs(processes)
    assert [process.returncode for process in processes] == [0, 0], logs
    assert [*(tmp_path / "run").glob(".*ed-*")] == []
    names = [file["name"] for file in TrainingOutput(tmp_path / "run").read_export()["files"]]
    assert names == ["part-0", "part-1"]


def test_a_process_that_must_stop_while_others_write_accepts_no_model(tmp_path: Path) -> None:
    (tmp_path / "slow").touch()
    chief, other = pair(tmp_path, PARTS)
    part = tmp_path / "run" / "export" / "part-0"
    while not part.exists():
        assert chief.poll() is None
    chief.send_signal(signal.SIGTERM)
    other.kill()
    logs = outputs([chief, other])
    assert chief.returncode == 143, logs
    assert TrainingOutput(tmp_path / "run").read_result() is None


def test_a_checkpoint_and_a_model_that_every_process_writes_are_complete(tmp_path: Path) -> None:
    processes = pair(tmp_path, COLLECTIVE)
    logs = outputs(processes)
    assert [process.returncode for process in processes] == [0, 0], logs
    (saved,) = complete_checkpoints(tmp_path / "run" / "checkpoints")
    assert [file["name"] for file in saved.manifest["files"]] == ["part-0", "part-1"]
    assert saved.manifest["metrics"] == {"accuracy": 0.5}
    assert [file["name"] for file in TrainingOutput(tmp_path / "run").read_export()["files"]] == ["part-0", "part-1"]
