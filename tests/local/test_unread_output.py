"""A launcher whose stdout nobody reads, as in a terminal after Ctrl-S, still hears interrupts and keeps its limits."""

import fcntl
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.api_server import PODS, ApiServer, Run, lines_of
from support.manifests import batch

pytestmark = pytest.mark.slow
NAME = batch().identity.name
JOB = f"/apis/batch/v1/namespaces/tests/jobs/{NAME}"
PIPE_BYTES = 65536
LAUNCH = """
import sys
from pathlib import Path
from kubetrain_components.interrupts import Terminated, interrupted_by_sigterm
from kubetrain_components.jobs import shown_lines
from kubetrain_components.jobs.budgets import Budgets
from kubetrain_components.jobs.follow import run_job
from kubetrain_components.jobs.job_logs import print_line
from kubetrain_components.jobs.kubernetes.backend import KubernetesBackend
from kubetrain_components.jobs.local.backend import LocalBackend
from support.jobs import job, script
from support.manifests import batch

shown_lines.STUCK_SECONDS = 0.2
place, limits = sys.argv[1], Budgets(run_seconds=float(sys.argv[2]))
flood = script("import time\\nfor number in range(10**4): print(number, 'x' * 90)\\ntime.sleep(600)")
try:
    with interrupted_by_sigterm(), LocalBackend(Path(place)) if place else KubernetesBackend.connect() as backend:
        run_job(job(flood) if place else batch(), backend, print_line, limits)
except Terminated:
    sys.exit(143)
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with ApiServer() as server:
        monkeypatch.setenv("KUBECONFIG", str(server.kubeconfig(tmp_path)))
        yield server


class Launcher:
    def __init__(self, place: str, seconds: float) -> None:
        paths = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        command = [sys.executable, "-c", LAUNCH, place, str(seconds)]
        self.process = subprocess.Popen(
            command, env={**os.environ, **paths}, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def await_full_pipe(self) -> None:
        """Wait until what is written can be read but not written on."""
        assert self.process.stdout is not None
        wait_for(lambda: is_full(self.process.stdout.fileno()))

    def rest(self) -> str:
        output, _ = self.process.communicate(timeout=30)
        return output.decode()


@pytest.fixture
def launch() -> Iterator[Callable[..., Launcher]]:
    launchers: list[Launcher] = []

    def start(place: str = "", seconds: float = 600) -> Launcher:
        launchers.append(Launcher(place, seconds))
        return launchers[-1]

    yield start
    for each in launchers:
        each.process.kill()
        each.process.communicate()


def is_full(pipe: int) -> bool:
    unread = fcntl.ioctl(pipe, termios.FIONREAD, b"    ")
    return int.from_bytes(unread, sys.byteorder) > PIPE_BYTES - 200


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def start_pod(cluster: ApiServer) -> None:
    """Let the pod of the job write more than a pipe holds."""
    wait_for(lambda: JOB in cluster.objects)
    uid = cluster.objects[JOB]["metadata"]["uid"]
    metadata = {"labels": {"batch.kubernetes.io/job-name": NAME}, "ownerReferences": [{"uid": uid}]}
    state = {"name": "main", "restartCount": 0, "state": {"running": {}}}
    status = {"phase": "Running", "containerStatuses": [state]}
    cluster.runs[f"{NAME}-0"] = [Run(lines_of(range(10_000)))]
    cluster.put(f"{PODS}/{NAME}-0", metadata=metadata, spec={"containers": [{"name": "main"}]}, status=status)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_deletes_the_job_of_a_cluster(
    cluster: ApiServer, launch: Callable[..., Launcher], number: signal.Signals, code: int
) -> None:
    launcher = launch()
    start_pod(cluster)
    launcher.await_full_pipe()
    launcher.process.send_signal(number)
    assert launcher.process.wait(20) == code
    assert JOB not in cluster.objects


def test_a_deadline_ends_the_job_of_a_cluster_and_says_how_much_was_not_shown(
    cluster: ApiServer, launch: Callable[..., Launcher]
) -> None:
    launcher = launch(seconds=12)
    start_pod(cluster)
    launcher.await_full_pipe()
    wait_for(lambda: JOB not in cluster.objects, 30)
    assert " lines not shown, because the output was not read" in launcher.rest()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_ends_a_job_on_this_machine(
    tmp_path: Path, launch: Callable[..., Launcher], number: signal.Signals, code: int
) -> None:
    launcher = launch(str(tmp_path))
    launcher.await_full_pipe()
    launcher.process.send_signal(number)
    assert launcher.process.wait(20) == code
    assert list(tmp_path.glob("*/job.json")) == []
