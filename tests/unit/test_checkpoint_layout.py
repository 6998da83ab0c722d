"""Readers use only complete checkpoints, choose by manifest, and detect corrupt bytes."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.checkpoint_layout import (
    SCHEMA,
    TrainingProgress,
    choose_checkpoint,
    complete_checkpoints,
    intact_checkpoints,
    read_checkpoint,
    remove_checkpoint,
    remove_partial,
    write_checkpoint,
)
from kubetrain_trainer.output.manifest import MANIFEST, CorruptFiles, read_manifest, verify_files, write_manifest
from kubetrain_trainer.settings.config import TrainConfig


def write(
    directory: Path, step: int, accuracy: float | None = 0.5, content: bytes = b"weights", **metrics: float | None
) -> Path:
    progress = TrainingProgress(step=step, epoch=1, samples_in_epoch=7, samples_seen=step * 64)
    measured = {"accuracy": accuracy, "loss": 1 - (accuracy or 0), **metrics}
    details = {"framework": "pytorch", "world_size": 2, "metrics": measured}
    return write_checkpoint(
        directory, progress, details, lambda path: path.joinpath("state.pt").write_bytes(content)
    ).path


def write_unvalidated(directory: Path, step: int) -> Path:
    """Write a checkpoint like that of a stopped training."""
    return write_checkpoint(
        directory, TrainingProgress(step=step), {"metrics": {}}, lambda path: path.joinpath("state.pt").touch()
    ).path


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[0] ^= 1
    path.write_bytes(content)


def test_an_epochs_last_step_completes_it() -> None:
    progress = TrainingProgress().after_step(60, epoch_size=100)
    assert progress == TrainingProgress(step=1, epoch=0, samples_in_epoch=60, samples_seen=60)
    assert progress.after_step(40, epoch_size=100) == TrainingProgress(
        step=2, epoch=1, samples_in_epoch=0, samples_seen=100
    )


def test_a_written_checkpoint_reads_back_with_its_progress(tmp_path: Path) -> None:
    path = write(tmp_path, 123)
    checkpoint = read_checkpoint(path)
    assert checkpoint is not None
    assert path.name == "step-00000123"
    assert checkpoint.progress == TrainingProgress(step=123, epoch=1, samples_in_epoch=7, samples_seen=123 * 64)
    assert set(checkpoint.manifest) >= {"schema", "framework", "world_size", "metrics", "files"}
    assert (path.joinpath("state.pt").stat().st_mode & 0o777) == 0o644, "evaluate and promote read it as another user"


def test_everything_is_flushed_before_the_checkpoint_gets_its_name_and_the_name_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write_two_files(folder: Path) -> None:
        (folder / "layers").mkdir()
        for name in ("state.pt", "layers/0.pt"):
            (folder / name).write_bytes(b"weights")

    flushed = []
    monkeypatch.setattr(os, "fsync", lambda file: flushed.append(Path(f"/proc/self/fd/{file}").readlink()))
    checkpoint = write_checkpoint(tmp_path, TrainingProgress(step=5), {}, write_two_files)
    partial = tmp_path / ".step-00000005.partial"
    assert {partial / "state.pt", partial / "layers/0.pt", partial / "layers", partial} <= {*flushed}
    assert [path.name.startswith(f".{MANIFEST}") for path in flushed].count(True) == 1
    assert flushed[-2:] == [partial, tmp_path]

    remove_checkpoint(checkpoint.path)
    assert flushed[-1] == tmp_path
    assert len(flushed) == 7, "no file is flushed twice"


def test_a_partial_checkpoint_is_invisible_and_removed(tmp_path: Path) -> None:
    write(tmp_path, 1)

    def killed(path: Path) -> None:
        path.joinpath("state.pt").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_checkpoint(tmp_path, TrainingProgress(step=2), {}, killed)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == [".step-00000002.partial"]
    assert [checkpoint.step for checkpoint in complete_checkpoints(tmp_path)] == [1]
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000001"]


@pytest.mark.parametrize("killed_at", ["rename of the new one", "removal of the earlier one"])
def test_a_step_that_is_saved_again_always_has_a_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed_at: str
) -> None:
    """A stopped training saves without validating; resumed at its last step, it saves this step again with metrics."""
    rename = Path.rename

    def rename_until_killed(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial"):
            raise KeyboardInterrupt
        return rename(path, target)

    def remove_until_killed(path: Path, **_: object) -> None:
        if path.exists():
            raise KeyboardInterrupt

    write_unvalidated(tmp_path, 8)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        if killed_at == "rename of the new one":
            patch.setattr(Path, "rename", rename_until_killed)
        else:
            patch.setattr(shutil, "rmtree", remove_until_killed)
        write(tmp_path, 8)
    assert len(list(intact_checkpoints(tmp_path))) == 1, "a run that resumes from this one reads it as it is"
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008"]
    (checkpoint,) = intact_checkpoints(tmp_path)
    assert checkpoint.is_validated == (killed_at == "removal of the earlier one")


def test_a_replaced_checkpoint_that_cannot_be_deleted_neither_blocks_the_next_nor_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NFS keeps the files that another client has open."""
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        for content in (b"first", b"second", b"third"):
            path = write(tmp_path, 5, content=content)
    assert path.joinpath("state.pt").read_bytes() == b"third"
    remove_checkpoint(path)
    remove_partial(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_of_two_replaced_checkpoints_the_newer_one_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rename = Path.rename

    def rename_until_killed(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial") and (path / "state.pt").read_bytes() == b"third":
            raise KeyboardInterrupt
        return rename(path, target)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)
        patch.setattr(Path, "rename", rename_until_killed)
        for content in (b"first", b"second", b"third"):
            write(tmp_path, 5, content=content)
    [checkpoint] = intact_checkpoints(tmp_path)
    assert (checkpoint.path / "state.pt").read_bytes() == b"second"
    remove_partial(tmp_path)
    assert (tmp_path / "step-00000005/state.pt").read_bytes() == b"second"


def test_a_replaced_checkpoint_remains_if_the_new_one_cannot_be_renamed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rename = Path.rename

    def rename_or_fail(path: Path, target: Path) -> Path:
        if path.name.endswith(".partial"):
            raise OSError(5, "Input/output error")
        return rename(path, target)

    write_unvalidated(tmp_path, 8)
    with monkeypatch.context() as patch, pytest.raises(OSError, match="Input/output"):
        patch.setattr(Path, "rename", rename_or_fail)
        write(tmp_path, 8)
    remove_partial(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["step-00000008"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: (path / MANIFEST).unlink(),
        lambda path: (path / MANIFEST).write_text('{"schema": "kubetrain/checkp'),
        lambda path: write_manifest(path, {**read_manifest(path), "schema": "someone/else"}),
        lambda path: write_manifest(path, {"schema": SCHEMA, "metrics": {}, "files": []}),
        lambda path: (path / MANIFEST).write_text("[]"),
        lambda path: (path / "state.pt").unlink(),
        lambda path: (path / "state.pt").write_bytes(b"short"),
    ],
)
def test_an_incomplete_checkpoint_is_invisible(tmp_path: Path, damage: object) -> None:
    write(tmp_path, 1)
    damage(write(tmp_path, 2))
    assert [checkpoint.step for checkpoint in complete_checkpoints(tmp_path)] == [1]


def test_a_checkpoint_with_any_flipped_bit_in_its_manifest_is_invisible(tmp_path: Path) -> None:
    manifest = write(tmp_path, 1) / MANIFEST
    content = manifest.read_bytes()
    for at in range(len(content)):
        flipped = bytearray(content)
        flipped[at] ^= 1 << at % 8
        manifest.write_bytes(flipped)
        assert read_checkpoint(manifest.parent) is None, flipped
    manifest.write_bytes(content)
    assert read_checkpoint(manifest.parent)


def test_newest_is_the_step_in_the_manifest_not_the_name(tmp_path: Path) -> None:
    write(tmp_path, 100_000_000)
    write(tmp_path, 99)
    write(tmp_path, 7).rename(tmp_path / "zzz")
    assert [checkpoint.step for checkpoint in complete_checkpoints(tmp_path)] == [7, 99, 100_000_000]


def test_a_corrupt_byte_is_found_and_named(tmp_path: Path) -> None:
    path = write(tmp_path, 5)
    flip_a_byte(path / "state.pt")
    checkpoint = read_checkpoint(path)
    assert checkpoint is not None, "its size is right: only its hash tells"
    with pytest.raises(CorruptFiles, match=r"state\.pt"):
        verify_files(path, checkpoint.manifest["files"])


def test_a_corrupt_newest_checkpoint_is_skipped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 1)
    flip_a_byte(write(tmp_path, 2) / "state.pt")
    assert [checkpoint.step for checkpoint in intact_checkpoints(tmp_path)] == [1]
    assert "skipping step-00000002" in caplog.text


def test_an_incomplete_checkpoint_is_skipped_and_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    write(tmp_path, 1)
    (write(tmp_path, 2) / "state.pt").write_bytes(b"")
    assert [checkpoint.step for checkpoint in intact_checkpoints(tmp_path)] == [1]
    assert "skipping step-00000002" in caplog.text


def test_if_the_best_is_corrupt_the_next_best_is_chosen_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for step, accuracy in ((1, 0.9), (2, 0.5), (3, 0.95), (4, 0.8)):
        write(tmp_path, step, accuracy)
    flip_a_byte(tmp_path / "step-00000003" / "state.pt")
    flip_a_byte(tmp_path / "step-00000004" / "state.pt")
    assert choose_checkpoint(tmp_path, TrainConfig()).step == 1
    assert choose_checkpoint(tmp_path, TrainConfig(select_checkpoint="last")).step == 2
    assert "skipping step-00000003" in caplog.text
    for step in (1, 2):
        flip_a_byte(tmp_path / f"step-0000000{step}" / "state.pt")
    with pytest.raises(CorruptFiles, match=r"every checkpoint in .* is corrupt"):
        choose_checkpoint(tmp_path, TrainConfig())


def test_the_best_is_chosen_by_the_metric_and_of_equals_the_newer(tmp_path: Path) -> None:
    for step, accuracy in ((1, 0.9), (2, 0.95), (3, 0.95), (4, 0.8)):
        write(tmp_path, step, accuracy)
    assert choose_checkpoint(tmp_path, TrainConfig()).step == 3
    assert choose_checkpoint(tmp_path, TrainConfig(metric="loss")).step == 3
    assert choose_checkpoint(tmp_path, TrainConfig(metric="min:loss")).step == 3
    assert choose_checkpoint(tmp_path, TrainConfig(metric="max:loss")).step == 4
    assert choose_checkpoint(tmp_path, TrainConfig(select_checkpoint="last")).step == 4


@pytest.mark.parametrize("loss", [math.nan, math.inf, None])
def test_a_good_metric_beside_a_loss_that_is_not_finite_is_the_worst(tmp_path: Path, loss: float | None) -> None:
    write(tmp_path, 1, accuracy=0.9, loss=loss)
    write(tmp_path, 2, accuracy=0.5)
    assert choose_checkpoint(tmp_path, TrainConfig()).step == 2


@pytest.mark.parametrize("not_finite", [math.nan, math.inf, -math.inf, None])
@pytest.mark.parametrize("direction", ["max", "min"])
def test_a_metric_that_is_not_finite_is_the_worst(tmp_path: Path, direction: str, not_finite: float | None) -> None:
    for step, accuracy in ((1, not_finite), (2, 0.5), (3, not_finite)):
        write(tmp_path, step, accuracy)
    assert choose_checkpoint(tmp_path, TrainConfig(metric=f"{direction}:accuracy")).step == 2
    newest, *_ = intact_checkpoints(tmp_path)
    assert newest.step == 3
    assert json.loads((newest.path / MANIFEST).read_text(), parse_constant=pytest.fail)["metrics"]["accuracy"] is None


def test_no_complete_checkpoint_and_an_unknown_metric_are_errors(tmp_path: Path) -> None:
    with pytest.raises(KubetrainError, match="no complete checkpoint in"):
        choose_checkpoint(tmp_path / "absent", TrainConfig())
    write(tmp_path, 1)
    with pytest.raises(KubetrainError, match=r"has no metric 'f1' \(it has: accuracy, loss\)"):
        choose_checkpoint(tmp_path, TrainConfig(metric="max:f1"))


def test_rewriting_a_step_replaces_its_checkpoint(tmp_path: Path) -> None:
    write(tmp_path, 1, content=b"old, and longer")
    path = write(tmp_path, 1, content=b"new")
    manifest = json.loads((path / MANIFEST).read_text())
    assert manifest["files"][0]["size"] == 3
    assert [checkpoint.step for checkpoint in intact_checkpoints(tmp_path)] == [1]


def test_a_checkpoint_that_was_not_validated_is_not_the_best(tmp_path: Path) -> None:
    best = write(tmp_path, 10)
    last = write_unvalidated(tmp_path, 20)
    assert choose_checkpoint(tmp_path, TrainConfig()).path == best
    assert choose_checkpoint(tmp_path, TrainConfig(select_checkpoint="last")).path == last
