"""Scripts of your own in two pods, of which one is drained: both stop after the same step, and go on from there."""

from pathlib import Path
from signal import SIGTERM

import pytest

from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from support.cli import processes_of, read_until, start
from support.pods import pod_processes
from support.tiers import ONE_IN_CI

STEPS = 60
LOOP = """
checkpoint = session.resume()
for number in range(checkpoint.step if checkpoint else 0, 60):
    total = step()
    time.sleep(0.05)
    session.log(number + 1, total=total)
    if session.should_stop() or (number + 1) % 20 == 0:
        session.save(number + 1, lambda folder: (folder / "state").write_text(str(total)))
session.finish(lambda folder: (folder / "model").write_text(str(total)), {"total": total})
"""
SCRIPTS = {
    "pytorch": f"""
import time, torch
from torch import distributed as dist
from kubetrain_trainer import session

dist.init_process_group("gloo")

def step():
    one = torch.ones(1)
    dist.all_reduce(one)
    return one
{LOOP}
dist.destroy_process_group()
""",
    "tensorflow": f"""
import time
import tensorflow as tf
from kubetrain_trainer import session

strategy = tf.distribute.MultiWorkerMirroredStrategy()
session.use(strategy)

@tf.function
def step():
    return strategy.reduce("SUM", strategy.run(lambda: tf.ones(())), axis=None)
{LOOP}
""",
}
pytestmark = pytest.mark.slow


@pytest.mark.thorough
@pytest.mark.parametrize("framework", ONE_IN_CI)
def test_a_drained_pod_costs_no_step(framework: str, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPTS[framework])
    run = start(
        *("train", f"train-{framework}", "--data", tmp_path, "--output", tmp_path / "output", "--run-id", "run"),
        *("--set", "pods.workers=2", "--set", "train.metrics_port=0", "--set", "train.entry=train.py"),
        cwd=tmp_path,
    )
    seen = read_until(run, "[kubetrain] step=25 ")
    pod_processes("worker-0", tmp_path / "output")[0].send_signal(SIGTERM)  # as a kubelet, which signals only the first
    rest, _ = run.communicate(timeout=120)
    assert run.returncode == 0, seen + rest
    assert rest.count("exit code 143); restarting") == 2, rest
    output = TrainingOutput(tmp_path / "output" / "run")
    assert [row["step"] for row in read_metrics(output.metrics)] == list(range(1, STEPS + 1)), "each step once"
    assert {row["total"] for row in read_metrics(output.metrics)} == {2.0}
    assert output.read_evaluation()["metrics"] == {"total": 2.0}
    assert processes_of(tmp_path) == []
