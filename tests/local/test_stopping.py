"""SIGTERM to trainers and to their launcher: what is saved and logged, and how all processes end."""

import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.checkpoint_layout import complete_checkpoints
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.termination import LOG_VARIABLE, parse_termination_message
from support.cli import read_until
from support.process_groups import start_python, tf_config, torchrun_variables
from support.tiers import ONE_IN_CI

FRAMEWORKS = ["pytorch", "tensorflow"]
TASK = """
import os, time
from dataclasses import replace
from kubetrain_trainer.FRAMEWORK.task import build_task as built_in

def build(config, data_dir):
    task = built_in(replace(config, model="digits_cnn"), data_dir)
    if os.path.exists("slow-start"):
        print("building", flush=True)
        time.sleep(60)
    def accuracy(outputs, targets):
        if os.path.exists("slow-validation"):
            print("validating", flush=True)
            time.sleep(0.5)
        return task.metrics["accuracy"](outputs, targets)
    return replace(task, metrics={"accuracy": accuracy})
"""

pytestmark = pytest.mark.slow


def prepare(framework: str, folder: Path, *wanted: str) -> None:
    (folder / "own.py").write_text(TASK.replace("FRAMEWORK", package_of(framework).rpartition(".")[2]))
    for rank in range(2):
        (folder / f"termination-message-{rank}").touch()
    for name in wanted:
        (folder / name).touch()


def train_pair(framework: str, folder: Path, *settings: object) -> list["subprocess.Popen[str]"]:
    fixed = ("--model", "own:build", "--data", "synthetic", "--metrics-port", 0, "--log-every", 10)
    ports = free_ports(2)
    return [
        start_python(
            *("-u", "-m", f"{package_of(framework)}.train", "--data-dir", ".", "--output-dir", "output"),
            *(*fixed, *settings),
            cwd=folder,
            **{LOG_VARIABLE: str(folder / f"termination-message-{rank}")},
            **(torchrun_variables(ports, rank) if framework == "pytorch" else {"TF_CONFIG": tf_config(ports, rank)}),
        )
        for rank in range(2)
    ]


def finish(pair: list["subprocess.Popen[str]"]) -> list[tuple[int, str]]:
    outputs = [process.communicate(timeout=60)[0] for process in pair]
    return [(process.returncode, output) for process, output in zip(pair, outputs, strict=True)]


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_sigterm_to_one_stops_all_after_the_same_step_to_resume_from(framework: str, tmp_path: Path) -> None:
    prepare(framework, tmp_path)
    output = TrainingOutput(tmp_path / "output")
    endless = ("--epochs", 1000, "--checkpoint-every", 100000)
    first = train_pair(framework, tmp_path, *endless)
    read_until(first[0], "step=20/")
    first[1].send_signal(signal.SIGTERM)
    (rank_0, log), (other, other_log) = finish(first)
    assert (rank_0, other) == (143, 143), log + other_log

    (checkpoint,) = complete_checkpoints(output.checkpoints)
    assert f"stopped by SIGTERM after step {checkpoint.step}: saved {checkpoint.name}; start this run again" in log
    messages = [parse_termination_message((tmp_path / f"termination-message-{rank}").read_text()) for rank in range(2)]
    assert messages[0] == messages[1]
    assert (messages[0]["status"], messages[0]["step"]) == ("stopped", checkpoint.step)
    assert output.verify_result(messages[0]) == checkpoint
    assert not output.is_finished()

    again = train_pair(framework, tmp_path, *endless)
    seen = read_until(again[0], f"step={checkpoint.step // 10 * 10 + 20}/")
    for process in again:  # all at the same time
        process.send_signal(signal.SIGTERM)
    (rank_0, log), (other, other_log) = finish(again)
    assert (rank_0, other) == (143, 143), log + other_log
    assert f"rank 0 resumes from output/checkpoints/{checkpoint.name}" in seen
    steps = [row["step"] for row in read_metrics(output.metrics) if "loss" in row]
    assert steps == sorted({*range(10, steps[-1] + 1, 10), checkpoint.step, steps[-1]}), "each step is measured once"


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_validation_is_abandoned_and_repeated_after_the_resume(framework: str, tmp_path: Path) -> None:
    """It would take 20 seconds and comes after the last step: only the validation and the export are left."""
    prepare(framework, tmp_path, "slow-validation")
    settings = ("--max-steps", 5, "--synthetic", '{"samples": 1280}', "--batch-size", 16)
    first = train_pair(framework, tmp_path, *settings)
    read_until(first[1], "validating")
    asked = time.monotonic()
    first[0].send_signal(signal.SIGTERM)
    (rank_0, log), (other, other_log) = finish(first)
    assert (rank_0, other) == (143, 143), log + other_log
    assert time.monotonic() - asked < 12
    assert "saved step-00000005 in" in log
    assert "not validated" in log

    (tmp_path / "slow-validation").unlink()
    (code, log), _ = finish(train_pair(framework, tmp_path, *settings))
    assert code == 0, log
    output = TrainingOutput(tmp_path / "output")
    reported = parse_termination_message((tmp_path / "termination-message-0").read_text())
    assert reported.pop("time")["seconds"]["start"] > 0
    assert output.read_result() == reported
    (checkpoint,) = complete_checkpoints(output.checkpoints)
    assert checkpoint.manifest["metrics"]["accuracy"] >= 0
    assert output.read_export()["manifest_sha256"] == checkpoint.manifest_sha256


SLOW_STORAGE = """
import os, signal, sys, threading, time
from kubetrain_trainer.output import checkpoint_layout
from kubetrain_trainer.processes.entry_point import run, training_arguments
from PACKAGE.train import train

describe_files = checkpoint_layout.describe_files
def slow(folder):
    if "step-00000005" in str(folder):
        threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGTERM)).start()
        time.sleep(2)
    return describe_files(folder)
checkpoint_layout.describe_files = slow
run(lambda: train(training_arguments("")))
"""


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_last_checkpoint_that_is_being_written_is_completed(framework: str, tmp_path: Path) -> None:
    settings = ("--data", "synthetic", "--max-steps", 5, "--metrics-port", 0)
    places = ("--data-dir", ".", "--output-dir", "output")
    program = SLOW_STORAGE.replace("PACKAGE", package_of(framework))
    process = start_python("-u", "-c", program, *places, *settings, cwd=tmp_path)
    log, _ = process.communicate(timeout=120)
    assert process.returncode == 143, log
    assert [each.step for each in complete_checkpoints(TrainingOutput(tmp_path / "output").checkpoints)] == [5], log


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_before_the_first_step_all_end_immediately(framework: str, tmp_path: Path) -> None:
    prepare(framework, tmp_path, "slow-start")
    pair = train_pair(framework, tmp_path)
    for process in pair:
        read_until(process, "building")
    asked = time.monotonic()
    for process in pair:
        process.send_signal(signal.SIGTERM)
    assert [code for code, _ in finish(pair)] == [143, 143]
    assert time.monotonic() - asked < 10
    assert complete_checkpoints(TrainingOutput(tmp_path / "output").checkpoints) == []


def test_processes_that_load_samples_still_serve_the_last_steps(tmp_path: Path) -> None:
    """torchrun sends the signal to them as well."""
    (tmp_path / "termination-message").touch()
    launcher = start_python(
        *("-u", "-m", "kubetrain_trainer.pytorch_ddp.launching.launch", "-m", "kubetrain_trainer.pytorch_ddp.train"),
        *("--data-dir", ".", "--output-dir", "output", "--data", "synthetic", "--metrics-port", 0),
        *("--epochs", 1000, "--log-every", 10, "--loader-workers", 2),
        cwd=tmp_path,
        **{LOG_VARIABLE: str(tmp_path / "termination-message")},
    )
    read_until(launcher, "step=20/")
    launcher.send_signal(signal.SIGTERM)
    log, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 143, log
    assert "stopped by SIGTERM after step" in log


@pytest.mark.parametrize(
    ("worker", "exit_code", "line"),
    [
        ("sys.exit(7)", 7, "rank 0 ended with exit code 7"),
        ("os.kill(os.getpid(), signal.SIGKILL)", 137, "rank 0 ended with exit code 137"),
        ("print('done')", 0, "done"),
    ],
)
def test_a_launcher_exits_with_the_code_of_its_process(worker: str, exit_code: int, line: str, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(f"import os, signal, sys\n{worker}\n")
    launcher = start_python("-m", "kubetrain_trainer.pytorch_ddp.launching.launch", "worker.py", cwd=tmp_path)
    log, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == exit_code
    assert log.splitlines() == [line]


def test_a_launcher_divides_the_cpus_among_its_processes(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        "import os, sys\nsys.stdout.write(f\"threads {os.environ['OMP_NUM_THREADS']}\\n\")\n"
    )
    (tmp_path / "launch.py").write_text(
        "import sys\nfrom kubetrain_trainer.processes import resources\n"
        "from kubetrain_trainer.pytorch_ddp.launching.launch import launch\n"
        "resources.usable_cpus = lambda: 16\nsys.exit(launch(sys.argv[1:]))\n"
    )
    without_threads = ("env", "-u", "OMP_NUM_THREADS")
    launcher = start_python("launch.py", "--nproc-per-node", 2, "worker.py", cwd=tmp_path, prefix=without_threads)
    assert launcher.communicate(timeout=60) == ("threads 8\nthreads 8\n", None)


def test_a_launcher_waits_for_its_processes_to_exit_in_order(tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(
        "import signal, sys, time\n"
        "def end(*_):\n    time.sleep(2)\n    print('ended in order', flush=True)\n    sys.exit(143)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)\n"
    )
    launcher = start_python("-m", "kubetrain_trainer.pytorch_ddp.launching.launch", "worker.py", cwd=tmp_path)
    read_until(launcher, "ready")
    for _ in range(2):  # after a second signal it still waits
        launcher.send_signal(signal.SIGTERM)
        time.sleep(0.3)
    log, _ = launcher.communicate(timeout=60)
    assert (launcher.returncode, log) == (143, "ended in order\n")


def test_a_launcher_hears_a_signal_that_arrives_in_a_finalizer(tmp_path: Path) -> None:
    """Python only prints what its handler raises there."""
    (tmp_path / "worker.py").write_text("import time\ntime.sleep(60)\n")
    (tmp_path / "launch.py").write_text(
        "import signal, sys\n"
        "from kubetrain_trainer.pytorch_ddp.launching.patient_agent import LocalElasticAgent\n"
        "from kubetrain_trainer.pytorch_ddp.launching.torchrun import run_processes\n"
        "class Connection:\n    def __del__(self):\n        signal.raise_signal(signal.SIGTERM)\n"
        "monitor = LocalElasticAgent._monitor_workers\n"
        "def monitor_and_close(*arguments):\n    Connection()\n    return monitor(*arguments)\n"
        "LocalElasticAgent._monitor_workers = monitor_and_close\n"
        "sys.exit(run_processes(sys.argv[1:]))\n"
    )
    launcher = start_python("launch.py", "worker.py", cwd=tmp_path)
    log, _ = launcher.communicate(timeout=60)
    assert launcher.returncode == 143, log


# A process that saves when its launcher has lost the others, while the kubelet stops the pod.
SAVES = """
import os, signal, sys, time
launcher = os.getppid()
def save(*_):
    os.kill(launcher, signal.SIGTERM)
    time.sleep(1)
    print("launcher waits" if os.getppid() == launcher else "launcher is gone", flush=True)
    sys.exit(143)
signal.signal(signal.SIGTERM, save)
print("ready", flush=True)
time.sleep(300)
"""


def meet(folder: Path, endpoint: str, conf: str, worker: str) -> "subprocess.Popen[str]":
    (folder / "worker.py").write_text(worker)
    rendezvous = ("--nnodes", "2:2", "--rdzv-backend", "c10d", "--rdzv-endpoint", endpoint, "--rdzv-conf", conf)
    return start_python("-m", "kubetrain_trainer.pytorch_ddp.launching.launch", *rendezvous, "worker.py", cwd=folder)


def test_a_launcher_that_lost_the_others_waits_for_a_save_when_it_is_stopped(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    first, second = (meet(tmp_path, endpoint, f"is_host={host}", SAVES) for host in (1, 0))
    for launcher in (first, second):
        read_until(launcher, "ready")
    for process in (*psutil.Process(first.pid).children(), first):
        process.kill()
    log, _ = second.communicate(timeout=120)
    first.communicate()
    assert (second.returncode, log) == (143, "launcher waits\n")


def test_a_launcher_says_that_it_met_no_others_in_time(tmp_path: Path) -> None:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    log, _ = meet(tmp_path, endpoint, "is_host=1,join_timeout=1", "").communicate(timeout=120)
    assert "this pod lost contact with the others, or never reached them: RendezvousTimeoutError" in log
    assert "Traceback" not in log
