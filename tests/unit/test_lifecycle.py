"""A training resumes from its newest intact checkpoint, in the time that this needs, and reports its own last one."""

import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubetrain_trainer.data.sampling import SamplePlan
from kubetrain_trainer.errors import KubetrainError, Stopped
from kubetrain_trainer.loop.recent_steps import RecentSteps
from kubetrain_trainer.loop.same_everywhere import Replicas
from kubetrain_trainer.loop.train import finish, is_validation_due, resume, save_and_stop
from kubetrain_trainer.loop.training import AnyTraining, warn_of_unused_settings
from kubetrain_trainer.output.checkpoint_layout import Checkpoint, TrainingProgress
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.watchdog import EXIT_CODE, Watchdog
from kubetrain_trainer.reporting.own_time import HostClock, OwnTime
from kubetrain_trainer.reporting.profile import Profile
from kubetrain_trainer.reporting.time_spent import summarize
from kubetrain_trainer.reporting.training_report import TrainingReport
from kubetrain_trainer.settings.config import TrainConfig
from support.training import FakeGroup

PLAN = SamplePlan(size=256, global_batch=16, world_size=2, seed=0)


def weights(path: Path) -> None:
    (path / "state").write_bytes(b"weights")


@dataclass(frozen=True, kw_only=True)
class Training(AnyTraining):
    """Rank 0 of a training without a framework."""

    def restore(self, checkpoint: Checkpoint) -> None:
        pass

    def save(self, progress: TrainingProgress, details: Mapping[str, Any]) -> None:
        self.writer.start(progress, details, weights)

    def export(self, checkpoint: Checkpoint) -> None:
        self.output.write_export(checkpoint, {}, weights)


class Model:
    model = None
    schedule: Callable[[int], float] | None = None


def training(path: Path, rank: int = 0) -> Training:
    config = TrainConfig(nccl_timeout_seconds=1, metrics_port=0)
    output, group = TrainingOutput(path), FakeGroup(rank, list)
    output.begin("pytorch", config, "")
    writer = CheckpointWriter(output, config)
    return Training(
        config=config,
        output=output,
        group=group,
        task=Model(),
        averages=None,
        writer=writer,
        recent=RecentSteps(config, group, writer.resume_hint),
        replicas=Replicas(group, lambda precisely: (0.0, 1)),
        watchdog=Watchdog(config, group.role),
        stop=nullcontext(),
        profile=Profile(config, output, group.role, nullcontext),
        own_time=OwnTime(HostClock()),
        peak_rate=0.1,
        seconds_at_peak=0.0,
    )


def write(output: TrainingOutput, step: int, **metrics: float) -> Path:
    return output.write_checkpoint(TrainingProgress(step=step), {"metrics": metrics}, weights).path


def write_damaged(output: TrainingOutput, step: int) -> None:
    """Write a checkpoint of the right size, so that only its hash shows the damage."""
    path = write(output, step, accuracy=0.9, loss=0.1) / "state"
    path.write_bytes(bytes(path.stat().st_size))


@pytest.fixture
def resumed(tmp_path: Path) -> Training:
    """Return a training with a damaged checkpoint of step 157 that resumed from step 100."""
    training_ = training(tmp_path / "run")
    write(training_.output, 100, accuracy=0.5, loss=0.5)
    write_damaged(training_.output, 157)
    progress, _ = resume(training_, PLAN)
    assert progress.step == 100
    return training_


def test_settings_of_images_are_named_if_the_data_is_the_tasks_own(caplog: pytest.LogCaptureFixture) -> None:
    warn_of_unused_settings(TrainConfig(model="torchvision:resnet18", recipe="strong"))
    assert not caplog.text
    warn_of_unused_settings(TrainConfig(model="own:build", recipe="strong", augment={"flip": 0}, epochs=2))
    assert (
        "train.recipe=strong, train.augment={'flip': 0}: without effect, unless the task's data reads the setting"
        in caplog.text
    )


def test_a_task_may_have_a_schedule_of_its_own(tmp_path: Path) -> None:
    training_ = training(tmp_path / "run")
    halfway = TrainingProgress(step=8, samples_in_epoch=128)
    assert training_.rate_factor(halfway, PLAN) == 0.5, "halfway through the warmup"
    training_.task.schedule = lambda step: 1 / step
    assert training_.rate_factor(halfway, PLAN) == 0.125
    training_.task.schedule = lambda step: float("nan")
    with pytest.raises(KubetrainError, match=r"schedule\(8\) returned nan"):
        training_.rate_factor(halfway, PLAN)


@pytest.mark.parametrize(
    ("step", "validated_step", "is_due"),
    [
        (100, -1, True),
        (200, 100, False),
        (400, 100, True),
        (500, 100, True),
        (320, 100, True),
    ],
    ids=["first", "too-soon", "due", "overdue", "last"],
)
def test_a_checkpoint_is_validated_when_that_is_due(step: int, validated_step: int, is_due: bool) -> None:
    config = TrainConfig(checkpoint_every=100, validate_every=300, epochs=20)
    progress = TrainingProgress(step=step, epoch=20 if step == 320 else 3)
    assert is_validation_due(config, progress, validated_step) is is_due


def test_a_stopped_training_reports_the_checkpoint_that_it_saved_not_a_damaged_later_one(resumed: Training) -> None:
    progress = TrainingProgress(step=130)
    report = TrainingReport(resumed.config, resumed.output, PLAN, resumed.group, progress, resumed.own_time)
    with pytest.raises(Stopped) as stopped:
        save_and_stop(resumed, progress, report)
    assert stopped.value.result["checkpoint"] == "step-00000130"
    assert summarize(resumed.output.time_spent)["seconds"]["checkpoint"] > 0


def test_the_model_and_its_average_get_rank_0s_statistics(resumed: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    model, average, broadcast = object(), object(), list[object]()
    monkeypatch.setattr(FakeGroup, "broadcast_statistics", lambda self, model: broadcast.append(model))
    averaged = replace(resumed, task=SimpleNamespace(model=model), averages=SimpleNamespace(model=average))
    progress = TrainingProgress(step=130)
    report = TrainingReport(averaged.config, averaged.output, PLAN, averaged.group, progress, averaged.own_time)
    with pytest.raises(Stopped):
        save_and_stop(averaged, progress, report)
    assert broadcast == [model, average]


def test_a_finished_training_proves_its_last_checkpoint_not_a_damaged_later_one(resumed: Training) -> None:
    finish(resumed)
    result = resumed.output.read_result()
    assert result is not None
    assert result["checkpoint"] == "step-00000100"


def test_a_failed_training_names_the_checkpoint_to_start_from_not_a_damaged_later_one(resumed: Training) -> None:
    assert "starts from step-00000100" in resumed.writer.resume_hint()


def test_a_training_without_a_checkpoint_of_its_own_names_none(tmp_path: Path) -> None:
    other = training(tmp_path / "other")
    write(other.output, 5)
    config = TrainConfig(nccl_timeout_seconds=1, resume_from="other")
    mine = training(tmp_path / "mine")
    object.__setattr__(mine, "config", config)
    assert resume(mine, PLAN)[0].step == 5
    assert "no checkpoint has been saved" in mine.writer.resume_hint()


def test_what_a_killed_save_left_is_removed_before_a_training_resumes(tmp_path: Path) -> None:
    resuming = training(tmp_path)
    write(resuming.output, 7)
    (resuming.output.checkpoints / ".step-00000009.partial").mkdir()
    assert resume(resuming, PLAN)[0].step == 7
    assert [path.name for path in resuming.output.checkpoints.iterdir()] == ["step-00000007"]


SLOW_SAVE = """
import sys, time
from pathlib import Path
import test_lifecycle
from test_lifecycle import PLAN, Stopped, TrainingProgress, TrainingReport, save_and_stop, training, weights

test_lifecycle.weights = lambda path: (time.sleep(1.6), weights(path))
slow, progress = training(Path(sys.argv[1])), TrainingProgress(step=9)
report = TrainingReport(slow.config, slow.output, PLAN, slow.group, progress, slow.own_time)
with slow.watchdog:
    slow.watchdog.beat("step 9")
    try:
        save_and_stop(slow, progress, report)
    except Stopped as stopped:
        print("saved", stopped.result["checkpoint"])
"""


def test_the_last_save_of_a_stopped_training_may_take_longer_than_a_step(tmp_path: Path) -> None:
    ended = run(SLOW_SAVE, tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "saved step-00000009\n")


SLOW_STORAGE = """
import sys, time
from pathlib import Path
from kubetrain_trainer.output import checkpoint_layout
from kubetrain_trainer.processes import watchdog
from test_lifecycle import PLAN, Training, resume, training

watchdog.START_FACTOR = 1
sha256_of = checkpoint_layout.sha256_of
checkpoint_layout.sha256_of = lambda path: time.sleep({verify}) or sha256_of(path)
Training.restore = lambda *_: time.sleep({read})
slow = training(Path(sys.argv[1]))
with slow.watchdog:
    print("resumed at step", resume(slow, PLAN)[0].step)
"""


@pytest.mark.parametrize(("verify", "read"), [(1.4, 0), pytest.param(0, 1.4, marks=pytest.mark.slow)])
def test_a_large_checkpoint_may_take_longer_to_verify_and_read_than_a_step(
    verify: float, read: float, tmp_path: Path
) -> None:
    write(training(tmp_path).output, 7)
    ended = run(SLOW_STORAGE.format(verify=verify, read=read), tmp_path)
    assert (ended.returncode, ended.stdout) == (0, "resumed at step 7\n")


LOST_RANK_0 = """
import sys, time
from pathlib import Path
from kubetrain_trainer.loop import train
from test_lifecycle import PLAN, FakeGroup, resume, training

train.STORAGE_SECONDS = 0.2
FakeGroup.from_rank_0 = lambda *_, **__: time.sleep(60)
peer = training(Path(sys.argv[1]), rank=1)
with peer.watchdog:
    resume(peer, PLAN)
"""


def test_a_process_does_not_wait_forever_for_rank_0_if_it_is_lost_while_it_verifies(tmp_path: Path) -> None:
    ended = run(LOST_RANK_0, tmp_path)
    assert ended.returncode == EXIT_CODE
    assert "rank 1 hangs: the start did not end within 0.2 s; it is in" in ended.stdout


def run(program: str, output: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, output],
        env={"PYTHONPATH": ":".join([str(Path(__file__).parent), *sys.path])},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=90,
        check=False,
    )


def test_the_peers_wait_for_the_verification_without_a_timeout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[bool] = []
    monkeypatch.setattr(
        FakeGroup, "from_rank_0", lambda self, decide, *, takes_long=False: (waits.append(takes_long), decide())[1]
    )
    assert resume(training(tmp_path), PLAN) == (TrainingProgress(), -1)
    assert waits == [True]
