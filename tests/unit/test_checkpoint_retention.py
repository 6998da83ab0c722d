"""The newest checkpoints and the best are kept. Others are removed atomically, even if the removal is interrupted."""

import shutil
from pathlib import Path

import pytest

from kubetrain_pipelines.cli.verify import verify_folder
from kubetrain_trainer.output import checkpoint_writer
from kubetrain_trainer.output.checkpoint_layout import (
    Checkpoint,
    complete_checkpoints,
    remove_checkpoint,
    remove_partial,
)
from kubetrain_trainer.output.checkpoint_writer import remove_superseded, superseded
from kubetrain_trainer.settings.config import TrainConfig


def checkpoint(step: int, accuracy: float | None = 0.5) -> Checkpoint:
    return Checkpoint(Path(f"step-{step:08d}"), {"step": step, "metrics": {"accuracy": accuracy}})


@pytest.mark.parametrize(
    ("accuracies", "keep", "gone"),
    [
        ([0.1, 0.2, 0.3], 3, []),
        ([0.1, 0.2, 0.3, 0.4], 3, [1]),
        ([0.9, 0.2, 0.3, 0.4], 3, []),
        ([0.9, 0.2, 0.3, 0.4, 0.5], 3, [2]),
        ([0.9, 0.9, 0.3, 0.4], 1, [1, 3]),
        ([0.1, 0.2, 0.3], 1, [1, 2]),
        ([None, None, 0.1, None], 1, [1, 2]),
        ([0.5], 1, []),
    ],
)
def test_the_newest_and_the_best_stay(accuracies: list[float], keep: int, gone: list[int]) -> None:
    complete = [checkpoint(step, accuracy) for step, accuracy in enumerate(accuracies, 1)]
    planned = superseded(complete, complete[-1], TrainConfig(keep_checkpoints=keep))
    assert [each.step for each in planned] == gone


def test_the_best_may_be_the_lowest() -> None:
    complete = [checkpoint(step, accuracy) for step, accuracy in enumerate((0.9, 0.2, 0.3, 0.4), 1)]
    planned = superseded(complete, complete[-1], TrainConfig(keep_checkpoints=1, metric="min:accuracy"))
    assert [each.step for each in planned] == [1, 3]


def test_checkpoints_after_the_newest_neither_count_nor_are_removed() -> None:
    """They are damaged, and the training resumed from an earlier checkpoint."""
    complete = [checkpoint(step) for step in (60, 70, 100)]
    planned = superseded(complete, complete[1], TrainConfig(keep_checkpoints=1))
    assert [each.step for each in planned] == [60]


def test_one_that_cannot_be_removed_is_left_to_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    saved = [Checkpoint(tmp_path / f"step-{step:08d}", {"step": step, "metrics": {}}) for step in (1, 2, 3)]
    for each in saved:
        each.path.mkdir()
    (tmp_path / ".step-00000001.removed").write_text("in the way")
    monkeypatch.setattr(checkpoint_writer, "complete_checkpoints", lambda directory: saved)
    for _ in range(2):
        remove_superseded(saved[-1], TrainConfig(keep_checkpoints=1))
        (tmp_path / ".step-00000001.removed").unlink(missing_ok=True)
        saved = [each for each in saved if each.path.exists()]
    assert f"cannot remove {tmp_path / 'step-00000001'} (" in caplog.text
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000003"]


def test_without_the_metric_only_the_newest_stay() -> None:
    complete = [checkpoint(step) for step in range(1, 6)]
    config = TrainConfig(keep_checkpoints=2, metric="f1", select_checkpoint="last")
    assert [each.step for each in superseded(complete, complete[-1], config)] == [1, 2, 3]


def write(directory: Path, step: int) -> Checkpoint:
    from kubetrain_trainer.output.checkpoint_layout import TrainingProgress, write_checkpoint

    details = {"metrics": {"accuracy": 0.5}}
    return write_checkpoint(
        directory, TrainingProgress(step=step), details, lambda path: (path / "state").write_bytes(b"w")
    )


def test_superseded_checkpoints_are_removed_and_the_rest_verifies(tmp_path: Path) -> None:
    *_, newest = [write(tmp_path, step) for step in range(1, 6)]
    remove_superseded(newest, TrainConfig(keep_checkpoints=2))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000004", "step-00000005"]
    assert [each.problems for each in verify_folder(tmp_path)] == [[], []]


def test_an_interrupted_removal_is_invisible_to_readers_and_is_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, 1)
    write(tmp_path, 2)

    def killed(path: Path, **_: object) -> None:
        if path.exists():
            (path / "state").unlink()
            raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", killed)
        remove_checkpoint(tmp_path / "step-00000001")
    assert [each.step for each in complete_checkpoints(tmp_path)] == [2]
    assert [each.path.name for each in verify_folder(tmp_path)] == ["step-00000002"]
    write(tmp_path, 1)
    remove_checkpoint(tmp_path / "step-00000001")
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"], "it may be removed again"

    (tmp_path / ".step-00000001.removed").mkdir()
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000002"]
