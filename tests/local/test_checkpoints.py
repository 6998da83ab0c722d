"""Checkpoints of real trainings: interrupted, out of space, damaged, malicious, and resumed by fewer processes."""

import json
import os
import pickle
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.checkpoint_layout import intact_checkpoints
from kubetrain_trainer.output.manifest import MANIFEST, describe_files, read_manifest, write_manifest
from support.own_tasks import TASKS
from support.process_groups import start_python, tf_config, torchrun_variables
from support.tiers import ONE_IN_CI

pytestmark = pytest.mark.slow

FRAMEWORKS = ["pytorch", "tensorflow"]
STATE = {"pytorch": "state.pt", "tensorflow": "state.npz"}
MODEL = {"pytorch": "model.pt", "tensorflow": "model.weights.h5"}
LAST = 30


def train(framework: str, folder: Path, *settings: object, **environment: str) -> "subprocess.Popen[str]":
    (folder / "own.py").write_text(TASKS[framework])
    arguments = ["-m", f"{package_of(framework)}.train", "--data-dir", ".", "--output-dir", "output"]
    arguments += ["--model", "own:build", "--metric", "loss", "--batch-size", "8"]
    return start_python(*arguments, *settings, cwd=folder, **environment)


def train_large(framework: str, folder: Path, megabytes: int = 60) -> "subprocess.Popen[str]":
    """Train a few steps with a checkpoint after each; most steps end before the first checkpoint is written."""
    model = json.dumps({"megabytes": megabytes})
    return train(framework, folder, "--model-args", model, "--checkpoint-every", 1, "--max-steps", LAST)


def finish(process: "subprocess.Popen[str]", exit_code: int = 0) -> str:
    output, _ = process.communicate(timeout=120)
    assert process.returncode == exit_code, output
    return output


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


def steps_in(checkpoints: Path) -> list[int]:
    return [checkpoint.step for checkpoint in intact_checkpoints(checkpoints)]


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_training_killed_while_it_writes_keeps_the_previous_checkpoint(framework: str, tmp_path: Path) -> None:
    checkpoints = tmp_path / "output" / "checkpoints"
    training = train_large(framework, tmp_path)
    half = checkpoints / f".step-{LAST:08d}.partial" / STATE[framework]
    wait_until(lambda: half.exists() and half.stat().st_size > 0)
    training.send_signal(signal.SIGKILL)
    killed = finish(training, -signal.SIGKILL)
    assert "skipped the checkpoint of step 2: the one of step 1 is still being written" in killed
    newest, *_ = steps_in(checkpoints)  # usually that of step 1, but steps may be slow
    assert newest < LAST

    resumed = finish(train_large(framework, tmp_path))
    assert f"resumes from output/checkpoints/step-{newest:08d}" in resumed
    assert f"saved step-{LAST:08d}" in resumed, "the training waits for the last one"
    last, before, *_ = steps_in(checkpoints)
    assert last == LAST
    assert not list(checkpoints.glob(".*"))

    (tmp_path / "output" / "result.json").unlink()
    with (checkpoints / f"step-{LAST:08d}" / STATE[framework]).open("r+b") as file:
        file.seek(1_000_000)
        file.write(b"damaged")
    fell_back = finish(train_large(framework, tmp_path))
    assert f"skipping step-{LAST:08d}" in fell_back
    assert f"resumes from output/checkpoints/step-{before:08d}" in fell_back
    assert steps_in(checkpoints)[0] == LAST


@pytest.mark.parametrize("framework", STATE)
def test_a_full_disk_fails_the_training_and_keeps_saved_checkpoints(framework: str, tmp_path: Path) -> None:
    output = tmp_path / "output"
    output.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=60m", "tmpfs", output]
    if not shutil.which("mount") or subprocess.run(mounted, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        log = finish(train_large(framework, tmp_path, megabytes=40), exit_code=1)
        assert re.search(r"error: the checkpoint of step \d+ could not be written to output/checkpoints", log)
        assert "(No space left on device): free space on this volume or enlarge it, then start this run again" in log
        assert "which resumes from step-00000001" in log
        assert "Traceback" not in log
        assert [path.name for path in (output / "checkpoints").iterdir()] == ["step-00000001"]
        assert steps_in(output / "checkpoints") == [1]
    finally:
        subprocess.run(["umount", output], check=True)


class Evil:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("executed",)


@pytest.mark.parametrize("framework", STATE)
def test_a_checkpoint_or_a_model_with_code_executes_nothing(framework: str, tmp_path: Path) -> None:
    finish(train_large(framework, tmp_path, megabytes=1))
    output, state, model = tmp_path / "output", STATE[framework], MODEL[framework]
    (output / "result.json").unlink()
    plant(output / "checkpoints" / f"step-{LAST:08d}", state, pickle.dumps({"model": Evil(), "optimizer": {}}))
    plant(output / "export", model, pickle.dumps(Evil()))
    resumed = finish(train_large(framework, tmp_path, megabytes=1), exit_code=1)
    assert f"error: output/checkpoints/step-{LAST:08d}/{state} was not written by this trainer" in resumed
    evaluation = start_python(
        *("-m", f"{package_of(framework)}.evaluate", "--data-dir", ".", "--output-dir", "output"), cwd=tmp_path
    )
    evaluated = finish(evaluation, exit_code=1)
    assert f"error: output/export/{model} was not written by this trainer" in evaluated
    assert "Traceback" not in resumed + evaluated
    assert not (tmp_path / "executed").exists()


def plant(directory: Path, name: str, content: bytes) -> None:
    """Replace a file, and describe the new one in the manifest."""
    manifest = read_manifest(directory)
    (directory / MANIFEST).unlink()
    (directory / name).write_bytes(content)
    write_manifest(directory, {**manifest, "files": describe_files(directory)})


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_one_process_resumes_where_two_were_killed_and_uses_each_remaining_sample_once(
    framework: str, tmp_path: Path
) -> None:
    settings = ("--model-args", '{"megabytes": 1}', "--checkpoint-every", 20, "--epochs", 1)
    (tmp_path / "kill-after-a-checkpoint").touch()
    ports = free_ports(2)
    pair = [train(framework, tmp_path, *settings, **member(framework, ports, rank)) for rank in range(2)]
    pair[0].wait(60)
    pair[1].kill()
    log, _ = pair[0].communicate()
    assert pair[0].returncode == -signal.SIGKILL or "another process was lost" in log, "the other one is killed as well"
    before = {path: [set(map(int, line.split())) for line in path.open()] for path in tmp_path.glob("taken-by-*")}
    assert len(before) == 2

    (tmp_path / "kill-after-a-checkpoint").unlink()
    resumed = finish(train(framework, tmp_path, *settings))
    assert "resumes from output/checkpoints/step-00000020" in resumed
    (alone,) = set(tmp_path.glob("taken-by-*")) - before.keys()
    saved = [index for steps in before.values() for step in steps[:20] for index in step]
    taken = saved + [int(index) for line in alone.open() for index in line.split()]
    assert len(saved) == 20 * 2 * 8
    assert sorted(taken) == list(range(2048)), "each sample of the epoch once"


def member(framework: str, ports: list[int], rank: int) -> dict[str, str]:
    return torchrun_variables(ports, rank) if framework == "pytorch" else {"TF_CONFIG": tf_config(ports, rank)}
