"""`kubetrain cancel` of a real run on this machine."""

import signal
from pathlib import Path

import pytest

from support.cli import kubetrain, processes_of, read_until, run_json, start


@pytest.mark.slow
def test_a_canceled_run_saves_a_checkpoint_and_leaves_no_process(tmp_path: Path) -> None:
    run = start("run", "--workspace", tmp_path, "--set", "pods.workers=1", "--set", "train.epochs=1000")
    read_until(run, "launch_training: step")
    canceled = kubetrain("cancel", tmp_path)
    run_id = run_json(tmp_path)["run_id"]
    assert canceled.output == (
        f"asked run {run_id} to stop\n"
        f"run {run_id} has stopped, and saved a checkpoint: --set train.resume_from={run_id} continues from it\n"
    )
    run.communicate(timeout=60)
    assert (canceled.exit_code, run.returncode) == (0, 128 + signal.SIGTERM)
    assert processes_of(tmp_path) == []
    assert kubetrain("cancel", tmp_path).output == f"run {run_id} had already ended: nothing to cancel\n"
