"""However one of several processes ends, the verdict comes soon and names the line, and no restart waits in vain."""

import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.job_state import LogLine
from kubetrain_components.jobs.local import backend as local_backend
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.jobs.local.operator import pod_environments
from kubetrain_components.jobs.placement import Placement
from kubetrain_components.jobs.verdict import JobFailed
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.config import TrainConfig

BEFORE = """
import ctypes, json, os, signal, socket, sys, time
from pathlib import Path
from kubetrain_trainer import session
from kubetrain_trainer.process_role import own_role

rank, output = own_role().rank, Path(os.environ["KUBETRAIN_OUTPUT"])
with open(output / "starts", "a") as starts:
    starts.write(str(rank))

def meet():
    '''Connect both processes, as a process group does: neither gets on while the other one is missing.'''
    cluster = json.loads(os.environ["TF_CONFIG"])["cluster"]
    host, port = (cluster.get("chief") or cluster["worker"])[0].split(":")
    if rank == 0:
        return socket.create_server((host, int(port))).accept()[0]
    while True:
        try:
            return socket.create_connection((host, int(port)))
        except OSError:
            time.sleep(0.05)

def exchange():
    try:
        peer.sendall(b".")
        alive = peer.recv(1)
    except OSError:
        alive = b""
    if not alive:
        raise RuntimeError("[/gloo/transport/tcp/pair.cc:534] Connection closed by peer")

def save():
    (output / "export" / "model").write_text("weights")

def end_of_the_other():
    while peer.recv(1):
        pass
    time.sleep(0.5)

peer = meet()
"""
OF_TORCH = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")

def exchange():
    dist.all_reduce(torch.ones(1))

def end_of_the_other():
    dist.destroy_process_group()
    while not list(output.glob(".ended-1")):
        time.sleep(0.1)
    time.sleep(0.5)

exchange()
"""
SAVES = "if rank == 0: save()"
WAYS = {
    # what rank 0 and rank 1 do: what the verdict says, starts of rank 0 and of rank 1
    "rank 0 raises when the other has ended": (
        ["if rank == 0:", "    end_of_the_other()", '    raise RuntimeError("disk says no")  # here'],
        *(r"RuntimeError: disk says no", 1, 1),
    ),
    "rank 0 is killed when the other has ended": (
        ["if rank == 0:", "    end_of_the_other()", "    os.kill(os.getpid(), signal.SIGKILL)"],
        *(r"was killed by SIGKILL|exited with code 137", 1, 1),
    ),
    "rank 1 raises first": (
        ['if rank == 1: raise ValueError("broken")  # here', "exchange()", SAVES],
        *("ValueError: broken", 3, 3),
    ),
    "rank 1 raises when rank 0 has ended": (
        [SAVES, "else:", "    time.sleep(1)", '    raise ValueError("late")  # here'],
        *("ValueError: late", 2, 2),
    ),
    "rank 1 ends with exit code 3 when rank 0 has ended": (
        [SAVES, "else:", "    time.sleep(1)", "    sys.exit(3)  # here"],
        *(r"sys.exit\(3\)", 2, 2),
    ),
    "rank 1 ends with exit code 3 while rank 0 waits for it": (
        ["if rank == 1: sys.exit(3)  # here", "exchange()", SAVES],
        *(r"sys.exit\(3\)", 3, 3),
    ),
    "rank 1 ends early with exit code 0": (
        ["if rank == 1: os._exit(0)", "exchange()", SAVES],
        *("another process was lost", 1, 1),
    ),
    "rank 0 is in a barrier when the other ends": (
        ["if rank == 0:", "    time.sleep(3)", "    exchange()"],
        *("another process was lost", 1, 1),
    ),
    "rank 1 is killed": (
        ["if rank == 1: os.kill(os.getpid(), signal.SIGKILL)", "exchange()", SAVES],
        *(r"was killed by SIGKILL|exited with code 137", 3, 3),
    ),
    "rank 1 has a segmentation fault": (
        ["if rank == 1: ctypes.string_at(0)  # here", "exchange()", SAVES],
        *("Segmentation fault", 3, 3),
    ),
    "nobody writes a model": (["exchange()"], "there is no model in ", 1, 1),
    "rank 0 ends without a word": (["exchange()", "if rank == 0: os._exit(0)"], "rank 0 reported no checkpoint", 1, 1),
    "a mistake before the first step": (["len(3)  # here"], "TypeError: object of type 'int' has no len", 1, 1),
    "a module that is missing": (["import no_such_module  # here"], "No module named 'no_such_module'", 1, 1),
    "a program that needs a GPU": (
        ['raise RuntimeError("this example requires CUDA")  # here'],
        *("RuntimeError: this example requires CUDA", 1, 1),
    ),
    "no Python": (["if rank ==:  # here"], r"SyntaxError: invalid syntax \(train.py, line \d+\)", 0, 0),
}


def trained(folder: Path, framework: str, entry: dict[str, Any], min_workers: int = 0) -> tuple[str, float, str]:
    """Return what the verdict says, the seconds from the first end to it, and the ranks that started."""
    training = TrainingJob(
        framework=framework,
        config=TrainConfig(entry=entry, data="synthetic", metrics_port=0),
        pipeline="train",
        run_id="run",
        data_dir=folder,
        output_dir=folder / "run",
        min_workers=min_workers,
        placement=replace(Placement(), max_restarts=1),
    )
    heard: list[tuple[float, LogLine]] = []
    with LocalBackend(folder / ".jobs") as backend:
        with pytest.raises(JobFailed) as failed:
            launch_training(training, backend, lambda line: heard.append((time.monotonic(), line)))
        ends = [pod.ended for pod in backend.times(training.to_job()).pods if pod.ended]
    starts = folder / "run" / "starts"
    return str(failed.value), time.time() - min(ends), starts.read_text() if starts.exists() else ""


@pytest.mark.parametrize("kind", ["script", "command"])
def test_a_restart_that_would_wait_for_others_in_vain_is_none(tmp_path: Path, kind: str) -> None:
    check(tmp_path, next(iter(WAYS)), kind, "tensorflow", BEFORE)


@pytest.mark.slow
@pytest.mark.parametrize(
    "way", [*[*WAYS][1:6], *(pytest.param(way, marks=pytest.mark.thorough) for way in [*WAYS][6:])]
)
def test_the_verdict_comes_soon_and_names_the_line(tmp_path: Path, way: str) -> None:
    check(tmp_path, way, "script", "tensorflow", BEFORE)


@pytest.mark.slow
@pytest.mark.thorough
@pytest.mark.parametrize("way", WAYS)
def test_the_verdict_on_processes_of_torchrun(tmp_path: Path, way: str) -> None:
    check(tmp_path, way, "script", "pytorch", BEFORE.replace("peer = meet()\n", OF_TORCH))


@pytest.mark.slow
@pytest.mark.parametrize("first", [0, 1])
def test_rank_0_of_an_elastic_job_fails_when_the_other_has_ended_in_whichever_pod_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, first: int
) -> None:
    def of_pods(*arguments: Any) -> Any:  # torchrun numbers the pods by their addresses
        environments = pod_environments(*arguments)
        for (_, index), environment in environments.items():
            environment["PET_LOCAL_ADDR"] = f"127.0.0.{1 if index == first else 2}"
        return environments

    monkeypatch.setattr(local_backend, "pod_environments", of_pods)
    lines, says, *_ = WAYS["rank 0 raises when the other has ended"]
    text = "\n".join([BEFORE.replace("peer = meet()\n", OF_TORCH), *lines, ""])
    (tmp_path / "train.py").write_text(text)
    verdict, seconds, started = trained(tmp_path, "pytorch", {"script": str(tmp_path / "train.py")}, min_workers=2)
    assert f"worker-{first}: " in verdict
    assert says in verdict
    assert seconds < 30
    assert sorted(started) == ["0", "1"], "nothing started again"


def check(folder: Path, way: str, kind: str, framework: str, before: str) -> None:
    lines, says, *starts = WAYS[way]
    text = "\n".join([before, *lines, ""])
    (folder / "train.py").write_text(text)
    script = str(folder / "train.py")
    entry = {"script": script} if kind == "script" else {"command": [sys.executable, "-u", script]}
    verdict, seconds, started = trained(folder, framework, entry)
    assert re.search(says, verdict), verdict
    if "# here" in text:
        line = next(number for number, each in enumerate(text.splitlines(), 1) if "# here" in each)
        assert f"(train.py, line {line})" in verdict or f"train.py, line {line}" in verdict, verdict
    assert seconds < 30
    assert all(started.count(str(rank)) <= most for rank, most in enumerate(starts)), started
