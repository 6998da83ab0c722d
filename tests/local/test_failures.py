"""Real trainings that fail: each ends or continues as expected, and states cause and remedy in one sentence."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from kubetrain_components.jobs.local.loopback import free_ports
from kubetrain_trainer.data.sampling import SamplePlan
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.checkpoint_layout import choose_checkpoint, complete_checkpoints
from kubetrain_trainer.output.manifest import write_manifest
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.termination import LOG_VARIABLE, parse_termination_message
from support.faulty_tasks import FAULTY_TASKS
from support.process_groups import start_python, tf_config, torchrun_variables
from support.tiers import ONE_IN_CI
from support.training import largest_difference, newest

pytestmark = pytest.mark.slow
FRAMEWORKS = list(FAULTY_TASKS)
SETTINGS: dict[str, Any] = {
    **{"model": "own:build", "metric": "loss", "batch_size": 8, "max_steps": 12, "checkpoint_every": 4, "log_every": 3},
    **{"metrics_port": 0, "ema_decay": 0.9},
}

SKIP_NO_CHECKPOINT = """
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter

CheckpointWriter.is_free = lambda writer, step: writer.wait() is None
"""


def train(
    framework: str, folder: Path, *, processes: int = 1, prefix: tuple[str, ...] = (), **settings: Any
) -> list[subprocess.Popen[str]]:
    """Start a process for each rank, each with its own file for the termination message."""
    (folder / "own.py").write_text(FAULTY_TASKS[framework] + SKIP_NO_CHECKPOINT)
    flags = [
        part
        for name, value in {**SETTINGS, **settings}.items()
        for part in (f"--{name.replace('_', '-')}", value if isinstance(value, str) else json.dumps(value))
    ]
    arguments = ["-m", f"{package_of(framework)}.train", "--data-dir", ".", "--output-dir", "output", *flags]
    ports = free_ports(2)
    started = []
    for rank in range(processes):
        message_file(folder, rank).write_text("")
        environment = {LOG_VARIABLE: str(message_file(folder, rank))}
        if processes > 1:
            alone = {"TF_CONFIG": tf_config(ports, rank)}
            environment |= torchrun_variables(ports, rank) if framework == "pytorch" else alone
        started.append(start_python(*arguments, cwd=folder, prefix=prefix, **environment))
    return started


def message_file(folder: Path, rank: int) -> Path:
    return folder / f"termination-message-{rank}"


def message(folder: Path, rank: int = 0) -> dict[str, Any]:
    return parse_termination_message(message_file(folder, rank).read_text())


def finish(processes: list[subprocess.Popen[str]], *exit_codes: int) -> list[str]:
    logs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == list(exit_codes), "\n".join(logs)
    return logs


class TestLossOfNan:
    PLAN = SamplePlan(size=256, global_batch=16, world_size=2, seed=0)
    BAD_STEP = 6

    def bad_sample(self, rank: int) -> int:
        return list(self.PLAN.batches(0, rank))[self.BAD_STEP - 1].indices[3]

    @pytest.mark.parametrize("framework", FRAMEWORKS)
    def test_ends_the_training_before_it_is_saved(self, framework: str, tmp_path: Path) -> None:
        spoiled = {"nan": [self.bad_sample(rank=1)]}
        # Only the next checkpoint reads the losses.
        logs = finish(train(framework, tmp_path, processes=2, model_args=spoiled, log_every=100), 1, 1)
        sentences = [message(tmp_path, rank)["error"] for rank in range(2)]
        assert sentences[0] == sentences[1]
        assert sentences[0].startswith("the loss of rank 1 is nan at step 6, with a learning rate of 0.0")
        assert "lower train.learning_rate, raise train.warmup_epochs" in sentences[0]
        assert sentences[0].endswith("a new run with train.resume_from=output starts from step-00000004")
        assert not message(tmp_path)["curable"]
        assert "Traceback" not in "".join(logs)
        assert re.search(r"^time until the last report: \d+ s \(.*start \d+%", logs[0], re.MULTILINE)
        assert [each.step for each in complete_checkpoints(tmp_path / "output" / "checkpoints")] == [4]

    @pytest.mark.parametrize("framework", ONE_IN_CI)
    def test_can_be_skipped_as_if_that_step_had_not_happened(self, framework: str, tmp_path: Path) -> None:
        bad = [self.bad_sample(rank=1)]
        skipping, leaving_out = tmp_path / "skipping", tmp_path / "leaving-out"
        for folder in (skipping, leaving_out):
            folder.mkdir()
        log, _ = finish(train(framework, skipping, processes=2, model_args={"nan": bad}, on_nan="skip"), 0, 0)
        finish(train(framework, leaving_out, processes=2, model_args={"leave_out": self.BAD_STEP}), 0, 0)
        assert "skipped a step: the loss of rank 1 is nan at step 6" in log
        assert largest_difference(newest(skipping / "output"), newest(leaving_out / "output")) == 0
        rows = [row for row in read_metrics(skipping / "output" / "metrics.jsonl") if "loss" in row]
        assert [(row["step"], row.get("skipped_steps")) for row in rows] == [(3, None), (6, 1), (9, 1), (12, 1)]
        assert None not in [row["loss"] for row in rows]

    def test_ends_a_training_that_would_skip_forever(self, tmp_path: Path) -> None:
        spoiled = {"nan": list(range(256))}
        log = finish(train("pytorch", tmp_path, model_args=spoiled, on_nan="skip"), 1)[0]
        assert log.count("skipped a step") == 9
        assert "is nan at step 10" in message(tmp_path)["error"]
        assert message(tmp_path)["error"].endswith("starts from step-00000008")


class TestProcessThatHangs:
    @pytest.mark.parametrize("place", ["loss", pytest.param("data", marks=pytest.mark.thorough)])
    @pytest.mark.parametrize("framework", FRAMEWORKS)
    def test_is_ended_with_its_stacks_and_says_where_it_hung(self, framework: str, place: str, tmp_path: Path) -> None:
        trouble = {"trouble": "hang", "place": place, "rank": 1, "after": 60 if place == "data" else 7}
        processes = train(framework, tmp_path, processes=2, model_args=trouble, nccl_timeout_seconds=5)
        waiting, hung = (process.communicate(timeout=100)[0] for process in processes)
        assert processes[1].returncode == 134, hung
        assert processes[0].returncode in (1, 134), waiting
        assert re.search(r'File ".*own\.py", line \d+ in stand_still', hung)
        _, late, stacks = waiting.partition("rank 0 has not ended step")
        assert late and re.search(r'File ".*/train\.py", line \d+ in run_epochs', stacks), waiting
        assert re.match(
            r"rank 1 hangs: step \d+ did not end within 5 s .* it is in stand_still \(",
            message(tmp_path, 1)["error"],
        )
        # On a busy machine the other process may not notice in time that this one is lost.
        lost = r"another process was lost in step \d+, with train\.batch_size=8: look for the one that failed first"
        waits = r"rank 0 hangs: step \d+ did .* look for another process that hangs, .*"
        assert re.fullmatch(f"{lost}|{waits}", message(tmp_path, 0)["error"])
        assert all(message(tmp_path, rank)["curable"] for rank in range(2))


class TestOutOfMemory:
    @pytest.mark.thorough
    @pytest.mark.parametrize("framework", FRAMEWORKS)
    def test_in_a_step(self, framework: str, tmp_path: Path) -> None:
        finish(train(framework, tmp_path, model_args={"allocate": 400}), 1)
        assert message(tmp_path)["error"].startswith(
            "out of memory in the first step, with train.batch_size=8: lower train.batch_size,"
        )
        assert not message(tmp_path)["curable"]

    @pytest.mark.thorough
    @pytest.mark.parametrize("framework", FRAMEWORKS)
    def test_for_the_model(self, framework: str, tmp_path: Path) -> None:
        finish(train(framework, tmp_path, model_args={"units": 200_000_000}), 1)
        found = message(tmp_path)["error"]
        assert found.startswith("out of memory at the start, with train.batch_size=8: lower train.batch_size,")
        assert not message(tmp_path)["curable"]

    def test_of_the_shared_memory_of_loading_processes(self, tmp_path: Path) -> None:
        limited = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=128k tmpfs /dev/shm && exec "$@"', "sh")
        if subprocess.run([*limited, "true"], check=False).returncode:
            pytest.skip("nothing can be mounted here")
        log = finish(train("pytorch", tmp_path, prefix=limited, loader_workers=1, batch_size=64), 1)[0]
        assert message(tmp_path)["error"].startswith(
            "shared memory, through which data loading processes pass their batches, is full in the first step"
        )
        assert "give each pod a larger /dev/shm" in log
        assert not message(tmp_path)["curable"]

    def test_for_which_the_kernel_kills_a_loading_process(self, tmp_path: Path) -> None:
        killed = {"trouble": "kill", "place": "data", "after": 20}
        finish(train("pytorch", tmp_path, loader_workers=1, model_args=killed), 1)
        assert message(tmp_path)["error"].startswith("a data loading process was killed in ")
        assert message(tmp_path)["curable"]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Callable[[int], None]]:
    """Return a function that sets the size in megabytes of the disk that holds the output."""
    output = tmp_path / "output"
    output.mkdir()

    def mount(*options: str) -> int:
        return subprocess.run(
            ["mount", "-t", "tmpfs", "-o", ",".join(options), "tmpfs", output], check=False
        ).returncode

    if not shutil.which("mount") or mount("size=30m"):
        pytest.skip("nothing can be mounted here")
    yield lambda megabytes: assert_is_zero(mount("remount", f"size={megabytes}m"))
    subprocess.run(["umount", output], check=True)


def assert_is_zero(exit_code: int) -> None:
    assert exit_code == 0


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_full_disk_is_reported_and_a_training_started_again_resumes(
    framework: str, small_disk: Callable[[int], None], tmp_path: Path
) -> None:
    output = tmp_path / "output"
    trouble = {"trouble": "fill", "place": "loss", "after": 71, "ballast": 13}
    settings = {"model_args": trouble, "epochs": 20, "max_steps": 130, "log_every": 1, "checkpoint_every": 70}
    remedy = r" \(No space left on device\): free space on this volume or enlarge it, then start this run again"
    settings |= {"ema_decay": 0}

    log = finish(train(framework, tmp_path, **settings), 1)[0]
    assert re.fullmatch(r"cannot use output/(metrics.jsonl|tensorboard/\S+)" + remedy, message(tmp_path)["error"])
    assert "Traceback" not in log

    (output / "filling").unlink()
    (tmp_path / "mended").touch()
    log = finish(train(framework, tmp_path, **settings), 1)[0]
    assert "resumes from output/checkpoints/step-00000070" in log
    assert "saved step-00000130" in log
    assert re.fullmatch(r"cannot use output/export" + remedy, message(tmp_path)["error"])
    assert not (output / ".export.partial").exists()

    small_disk(60)
    finish(train(framework, tmp_path, **settings), 0)
    assert message(tmp_path)["status"] == "completed"


@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_if_the_best_checkpoint_is_damaged_the_next_best_becomes_the_model(framework: str, tmp_path: Path) -> None:
    finish(train(framework, tmp_path), 0)
    output = TrainingOutput(tmp_path / "output")
    first = complete_checkpoints(output.checkpoints)[0]
    write_manifest(first.path, {**first.manifest, "metrics": {**first.manifest["metrics"], "loss": 0.0}})
    best = choose_checkpoint(output.checkpoints, output.train_config())
    assert best.step == first.step
    state = next(path for path in best.path.iterdir() if path.name.startswith("state"))
    state.write_bytes(b"x" * state.stat().st_size)
    (output.path / "result.json").unlink()
    log = finish(train(framework, tmp_path), 0)[0]
    assert f"skipping {best.name}" in log
    exported = output.read_export()["checkpoint"]
    assert exported != best.name
    assert exported == choose_checkpoint(output.checkpoints, output.train_config()).name
