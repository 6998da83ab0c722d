"""What `kubetrain run` says when it is stopped: how to go on from the training's checkpoint."""

import json
from pathlib import Path

from kubetrain_pipelines.cli import run
from kubetrain_pipelines.local_run.record import RunRecord
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress, write_checkpoint
from kubetrain_trainer.settings.config import TrainConfig


def stopped_in(workspace: Path, *events: tuple[str, str], has_checkpoint: bool = True) -> None:
    """Leave what a run leaves that began at second 100 and was stopped after these events of stages."""
    record = RunRecord(
        pipeline="train-pytorch", workspace=workspace, asked={}, settings={}, config=TrainConfig(), started=100.0
    )
    record.run_id, record.status = "71822478", "stopped"
    (workspace / "run.json").write_text(json.dumps(record.to_json()))
    lines = [json.dumps({"event": event, "stage": stage, "time": 100.0}) for event, stage in events]
    (workspace / "events.jsonl").write_text("".join(f"{line}\n" for line in lines))
    if has_checkpoint:
        checkpoints = workspace / "output" / "71822478" / "checkpoints"
        write_checkpoint(checkpoints, TrainingProgress(step=2), {"metrics": {}}, lambda folder: (folder / "a").touch())


def test_the_run_of_a_stopped_training_can_be_named(tmp_path: Path) -> None:
    stopped_in(tmp_path, ("started", "launch_training"))
    assert run.stopped_with_checkpoint(tmp_path, since=99.0) == "71822478"


def test_an_earlier_run_is_not_named(tmp_path: Path) -> None:
    stopped_in(tmp_path, ("started", "launch_training"))
    assert run.stopped_with_checkpoint(tmp_path, since=101.0) == ""


def test_nor_one_without_a_checkpoint(tmp_path: Path) -> None:
    assert run.stopped_with_checkpoint(tmp_path, since=99.0) == ""
    stopped_in(tmp_path, ("started", "launch_training"), has_checkpoint=False)
    assert run.stopped_with_checkpoint(tmp_path, since=99.0) == ""


def test_nor_one_that_has_nothing_left_to_train(tmp_path: Path) -> None:
    stopped_in(tmp_path, ("started", "launch_training"), ("finished", "launch_training"))
    assert run.stopped_with_checkpoint(tmp_path, since=99.0) == ""
