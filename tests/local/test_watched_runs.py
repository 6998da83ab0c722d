"""`kubetrain status` of runs and jobs on this machine: real processes, files and pipes, and a real terminal."""

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kubetrain_components.jobs.job import RestartPolicy
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.run.events import EventLog
from kubetrain_pipelines.local_run.record import KILLED, RunRecord, write_start
from kubetrain_trainer.settings.config import TrainConfig
from support.cli import KUBETRAIN, interrupt, kubetrain, read_until, start
from support.jobs import job, script

CTRL_C = b"\x03"
ERASE_LINE, SHOW_CURSOR = "\x1b[2K", "\x1b[?25h"
CLEAR_SCREEN = ("\x1b[2J", "\x1b[J", "\x1bc")
PROGRESS = "[kubetrain] step=3/9 loss=0.5 samples_per_second=80 seconds_left=6 checkpoint_age_seconds=4"


def make_workspace(path: Path) -> Path:
    """Return the workspace of a run of this very process, in its first stage."""
    path.mkdir()
    of_run: dict[str, Any] = {"asked": {}, "settings": {}, "config": TrainConfig(), "started": time.time()}
    write_start(RunRecord(pipeline="train-pytorch", workspace=path, **of_run))
    EventLog(path / "events.jsonl").emit("sync_dataset", "started", run_id="r-1")
    return path


@pytest.mark.slow
def test_a_run_is_shown_from_outside_while_it_trains(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    run = start("run", "--workspace", workspace, "--set", "train.epochs=1000")
    watch = None
    try:
        read_until(run, "launch_training: step")
        watch = start("status", workspace, "--watch")
        seen = read_until(watch, "progress step")
        assert re.search(r"^run [0-9a-f]+ \(train-pytorch\): running, started .*\nPrepare storage succeeded", seen)
        assert re.search(r"^master-0 Running localhost\nworker-0 Running localhost\n", seen, re.M)
        assert re.search(r"data wait \d+% · time left [\d a-z]+ · unsaved [\d a-z]+\n$", seen)
        shown = kubetrain("status", workspace)
        assert (shown.exit_code, max(map(len, shown.output.splitlines())) <= 80) == (0, True)
        interrupt(run)
        output, _ = watch.communicate(timeout=60)
        assert re.search(r"^error: run [0-9a-f]+ was canceled$", output, re.M)
        assert watch.returncode == 1
    finally:
        for process in (run, watch):
            if process:
                process.kill()
                process.communicate()


def test_a_run_whose_process_was_killed_has_failed(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "workspace")
    killed = psutil.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    change_owner(workspace, {"pid": killed.pid, "started": killed.create_time()})
    assert found(workspace)["state"] == "running"
    killed.kill()
    while killed.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    state = found(workspace)
    killed.communicate()
    assert (state["state"], state["causes"]) == ("failed", [KILLED])
    assert found(workspace) == state, "its parent has waited for it"
    assert [stage["state"] for stage in state["stages"]] == ["failed"]


def found(workspace: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(kubetrain("status", workspace, "--json").output)
    return content


def change_owner(workspace: Path, owner: dict[str, float]) -> None:
    content = json.loads((workspace / "run.json").read_text())
    (workspace / "run.json").write_text(json.dumps({**content, "owner": owner}))


def test_ctrl_c_ends_the_watching_on_a_terminal_without_a_traceback(tmp_path: Path) -> None:
    workspace = make_workspace(tmp_path / "workspace")
    frame = "Sync the dataset  running"
    output, exit_code = on_a_terminal(["status", str(workspace), "--watch"], until=lambda seen: seen.count(frame) >= 2)
    assert exit_code == 130
    assert re.search(r"run r-1 continues\s+stopped\s+$", output)
    assert "Traceback" not in output
    first, second = output.split(frame)[:2]
    assert ERASE_LINE in second, "a frame replaces the one before"
    assert not any(clear in output for clear in CLEAR_SCREEN), "which would flicker"
    assert SHOW_CURSOR in output
    assert first.startswith("\x1b[?25l")


def on_a_terminal(arguments: list[str], until: Callable[[str], bool]) -> tuple[str, int]:
    """Run the command on a terminal of 80 columns, press Ctrl-C once it has shown enough, and return what it wrote."""
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(KUBETRAIN, [KUBETRAIN, *arguments], {**os.environ, "TERM": "xterm"})
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    seen, has_pressed = b"", False
    while select.select([terminal], [], [], 60)[0]:
        try:
            seen += os.read(terminal, 65536)
        except OSError:  # the terminal is closed
            break
        if not has_pressed and until(seen.decode(errors="replace")):
            os.write(terminal, CTRL_C)
            has_pressed = True
    return seen.decode(), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_the_default_is_the_workspace_here(tmp_path: Path) -> None:
    make_workspace(tmp_path / "kubetrain-workspace")
    shown = kubetrain("status", cwd=tmp_path)
    assert (shown.exit_code, shown.output.splitlines()[0][:39]) == (0, "run r-1 (train-pytorch): running, start")


def test_a_training_is_watched_to_its_end(tmp_path: Path) -> None:
    go = tmp_path / "go"
    training = script(f"import os, time; print({PROGRESS!r})\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)")
    with LocalBackend(tmp_path / ".jobs") as backend:
        handle = backend.create(job(training, policy=RestartPolicy.NEVER))
        watch = start("status", tmp_path, "--watch")
        seen = read_until(watch, "progress")
        go.touch()
        output, _ = watch.communicate(timeout=60)
    name = handle.name
    assert seen.startswith(f"job {name} (TFJob): Running\nchief-0 Running localhost\nprogress ")
    assert f"job {name} (TFJob): Succeeded\nchief-0 Succeeded localhost\njob {name} succeeded\n" in output
    assert watch.returncode == 0


def test_the_result_of_a_training_that_is_stopped_and_deleted_is_unknown(tmp_path: Path) -> None:
    with LocalBackend(tmp_path / ".jobs") as backend:
        handle = backend.create(job(script(f"import time; print({PROGRESS!r}); time.sleep(3600)")))
        watch = start("status", tmp_path, "--watch")
        read_until(watch, "progress")
        backend.delete(handle)
        output, _ = watch.communicate(timeout=60)
    assert f"error: job {handle.name} can no longer be read, so how it ended is unknown: " in output
    assert watch.returncode == 3


@pytest.mark.parametrize("content", [[], ["notes.txt"]])
def test_another_folder_is_refused(content: list[str], tmp_path: Path) -> None:
    for name in content:
        (tmp_path / name).touch()
    refused = kubetrain("status", tmp_path)
    assert refused.output == f"error: {tmp_path} has no run and no job: name a workspace or the output of a training\n"
    assert refused.exit_code == 2
