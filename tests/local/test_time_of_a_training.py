"""The account of a real training that waits for its data, is killed, and resumes: its parts are its wall time."""

import time
from pathlib import Path

import pytest

from kubetrain_components.jobs.job_logs import print_line
from kubetrain_components.jobs.local.backend import LocalBackend
from kubetrain_components.launch_training.launch import launch_training
from kubetrain_components.launch_training.training_job import TrainingJob
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.settings.config import TrainConfig
from support.tiers import ONE_IN_CI

TOLERANCE_SECONDS = 3.0
"""Time of the launcher before it creates the job, and after its last pod has ended."""
READ_SECONDS, STEPS, CHECKPOINT_EVERY = 0.3, 85, 40
TASK = f'''
import json, os, time
from dataclasses import replace
from pathlib import Path
from kubetrain_trainer.FRAMEWORK.task import build_task as built_in

class Samples:
    def __init__(self, samples, seconds):
        self.samples, self.seconds = samples, seconds
    def __len__(self):
        return 100 if self.seconds else 8
    def __getitem__(self, index):
        time.sleep(self.seconds)
        return self.samples[index]
    def load(self, index):
        import tensorflow as tf
        with tf.control_dependencies([tf.numpy_function(lambda: time.sleep(self.seconds), [], [])]):
            return self.samples.load(tf.identity(index))

def kill_once(step):
    """Kill the process once it has written down the time of steps after a checkpoint."""
    written = json.loads(Path("run/time.json").read_text())[-1]["step"] if step > {CHECKPOINT_EVERY} + 1 else 0
    if written > {CHECKPOINT_EVERY} and written % {CHECKPOINT_EVERY} and not Path("killed").exists():
        Path("killed").touch()
        os.kill(os.getpid(), 9)
    return 1.0

def build(config, data_dir):
    task = built_in(replace(config, model="digits_cnn"), data_dir)
    data = lambda split: Samples(task.data(split), {READ_SECONDS} if split == "train" else 0)
    return replace(task, data=data, training_data=None, schedule=kill_once)
'''

pytestmark = pytest.mark.slow


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_the_parts_of_a_killed_and_resumed_training_are_its_wall_time(
    framework: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own.py").write_text(TASK.replace("FRAMEWORK", package_of(framework).rpartition(".")[2]))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    settings = {"data": "synthetic", "model": "own:build", "batch_size": 1, "loader_workers": 1, "max_steps": STEPS}
    settings |= {"log_every": 1, "checkpoint_every": CHECKPOINT_EVERY, "metrics_port": 0}
    training = TrainingJob(
        framework=framework,
        config=TrainConfig.from_dict(settings),
        pipeline="train",
        run_id="run",
        data_dir=tmp_path,
        output_dir=tmp_path / "run",
        workers=1,
    )
    began = time.monotonic()
    with LocalBackend(tmp_path / "jobs") as backend:
        result = launch_training(training, backend, print_line)
        wall_seconds = time.monotonic() - began
    seconds = result["time"]["seconds"]
    print(f"wall time {wall_seconds:.1f} s: {seconds}")
    assert wall_seconds - TOLERANCE_SECONDS < sum(seconds.values()) <= wall_seconds
    assert seconds["data_wait"] > 0.1
    assert seconds["repeated"] > 0.1, "the steps since the checkpoint were taken again"
    assert seconds["restart"] > 0.5, "the pod waits for a second"
    assert "unknown" not in seconds and "preemption" not in seconds
