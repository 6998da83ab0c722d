"""Measure how long a training pauses after losing a process: from the signal to the next step, on this machine.

.venv/bin/python benchmarks/trainers/recovery.py [--rounds 3] [--only NAME …]

Two workers train digits_cnn and report each step. The imports of the same programs are measured in each round too,
because they depend on the image and the disk, not on kubetrain.
"""

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from signal import Signals

import psutil

from kubetrain_pipelines.local_run.digits import write_digits

KUBETRAIN = [sys.executable, "-c", "from kubetrain_pipelines.cli.main import main; main()"]
LAUNCHER, PYTORCH = "torch.distributed.run", "kubetrain_trainer.pytorch_ddp.train"
TENSORFLOW = "kubetrain_trainer.tensorflow_multiworker.train"
TOKEN_STEP, SETTLED_SECONDS = "[kubetrain] step=", 3.0


@dataclass(frozen=True)
class Scenario:
    pod: str
    signal: Signals = Signals.SIGKILL
    framework: str = "pytorch"
    flags: tuple[str, ...] = ()
    whole_pod: bool = True
    imports: tuple[str, ...] = (LAUNCHER, PYTORCH)
    """Modules imported one after the other before the next step."""


ELASTIC = ("--set", "pods.min_workers=1")
SCENARIOS = {
    "a worker's process killed": Scenario("worker-0", whole_pod=False),
    "the Master's pod killed": Scenario("master-0"),
    "SIGTERM to one of two": Scenario("worker-0", Signals.SIGTERM),
    "elastic: a worker's process killed": Scenario("worker-1", flags=ELASTIC, whole_pod=False, imports=(PYTORCH,)),
    "elastic: a worker's pod killed": Scenario("worker-1", flags=ELASTIC, imports=(PYTORCH,)),
    "elastic: SIGTERM to a worker's pod": Scenario("worker-1", Signals.SIGTERM, flags=ELASTIC, imports=(PYTORCH,)),
    "elastic: worker-0's pod killed": Scenario("worker-0", flags=ELASTIC),
    "TensorFlow: the worker killed": Scenario("worker-0", framework="tensorflow", imports=(TENSORFLOW,)),
    "TensorFlow: the Chief killed": Scenario("chief-0", framework="tensorflow", imports=(TENSORFLOW,)),
    "TensorFlow: SIGTERM to one": Scenario("worker-0", Signals.SIGTERM, framework="tensorflow", imports=(TENSORFLOW,)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", default=list(SCENARIOS), metavar="NAME")
    parser.add_argument("--verbose", action="store_true", help="show every line of the jobs with its time")
    arguments = parser.parse_args()
    print("| scenario | seconds to the next step | of which imports | without them | most |")
    print("| --- | ---: | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "digits"
        write_digits(data)
        for name in arguments.only:
            scenario = SCENARIOS[name]
            outputs = [Path(folder) / f"{name}-{number}".replace(" ", "-") for number in range(arguments.rounds)]
            seconds = [recovery_seconds(scenario, data, output, arguments.verbose) for output in outputs]
            imports = [import_seconds(scenario.imports) for _ in seconds]
            net = [whole - part for whole, part in zip(seconds, imports, strict=True)]
            middle = [statistics.median(values) for values in (seconds, imports, net)]
            print("|", name, *(f"| {value:.1f}" for value in (*middle, max(net))), "|", flush=True)


def recovery_seconds(scenario: Scenario, data: Path, output: Path, is_verbose: bool) -> float:
    with training(scenario, data, output) as job:
        assert job.stdout is not None
        lost, is_back = 0.0, False
        settled = time.monotonic() + 60
        for line in job.stdout:
            now = time.monotonic()
            if is_verbose:
                print(f"{now - lost if lost else 0:6.2f} {line}", end="", file=sys.stderr)
            if TOKEN_STEP in line and is_back:
                return now - lost
            if TOKEN_STEP in line and not lost:
                settled = min(settled, now + SETTLED_SECONDS)
                if now >= settled:
                    signal_pod(scenario, output)
                    lost = time.monotonic()
            is_back = is_back or bool(lost and "training starts:" in line)
    raise SystemExit(f"{scenario}: the training did not come back")


@contextlib.contextmanager
def training(scenario: Scenario, data: Path, output: Path) -> Iterator["subprocess.Popen[str]"]:
    settings = {"epochs": 100000, "log_every": 1, "checkpoint_every": 50, "metrics_port": 0}
    pairs = [f"--set=train.{name}={value}" for name, value in settings.items()]
    flags = (f"train-{scenario.framework}", "--data", str(data), "--output", str(output), "--run-id", "run")
    job = subprocess.Popen(
        [*KUBETRAIN, "train", *flags, *scenario.flags, *pairs],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield job
    finally:
        job.send_signal(Signals.SIGINT)
        job.communicate()


def signal_pod(scenario: Scenario, output: Path) -> None:
    """Kill every process at once, or send SIGTERM to the first, as a kubelet does."""
    processes = pod_processes(scenario.pod, output)
    if scenario.signal is Signals.SIGTERM:
        processes = processes[:1]
    elif not scenario.whole_pod:
        processes = processes[-1:]
    for process in processes:
        process.send_signal(scenario.signal)


def pod_processes(pod: str, output: Path) -> list[psutil.Process]:
    """Return the processes of this output's job: the launcher and its children."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            marks = {name: value for name, value in process.environ().items() if name.startswith("KUBETRAIN_POD_")}
            if pod in marks.values() and str(output) in " ".join(process.cmdline()):
                found.append(process)
    return sorted(found, key=lambda process: process.create_time())


def import_seconds(modules: tuple[str, ...]) -> float:
    """Return the import time of two concurrent processes, one per pod; each module in a new process."""
    began = time.monotonic()
    for module in modules:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TF_CPP_MIN_LOG_LEVEL": "3"}
        command = [sys.executable, "-c", f"import os, {module}; os._exit(0)"]
        pair = [subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL) for _ in range(2)]
        for process in pair:
            process.wait()
    return time.monotonic() - began


if __name__ == "__main__":
    main()
