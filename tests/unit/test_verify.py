"""Verifying a training's output and a whole workspace: files by manifests, manifests by the files that name them."""

from pathlib import Path

import pytest

from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.sync_dataset.transfer import transfer_dataset
from kubetrain_pipelines.cli.verify import verify_folder
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.manifest import read_manifest, write_manifest
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.settings.config import TrainConfig


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A dataset version and the outputs of two runs, laid out as by local runs."""
    (tmp_path / "source").mkdir()
    (tmp_path / "source" / "a").write_bytes(b"1")
    workspace = tmp_path / "workspace"
    transfer_dataset(DirectoryStore(tmp_path / "source"), workspace / "staging")
    for run_id in ("run-1", "run-2"):
        train(TrainingOutput(workspace / "output" / run_id))
    return workspace


def train(output: TrainingOutput) -> None:
    output.begin("pytorch", TrainConfig(), "d" * 16)
    best = output.write_checkpoint(TrainingProgress(step=1), {"metrics": {"accuracy": 0.9}}, write_weights)
    last = output.write_checkpoint(TrainingProgress(step=2), {"metrics": {"accuracy": 0.8}}, write_weights)
    output.write_export(best, {}, write_weights)
    output.finish(last)


def write_weights(folder: Path) -> None:
    (folder / "weights").write_bytes(b"w")


def problems(folder: Path) -> dict[str, list[str]]:
    return {each.path.relative_to(folder).as_posix(): each.problems for each in verify_folder(folder)}


def replace(checkpoint: Path, **changes: object) -> None:
    write_manifest(checkpoint, {**read_manifest(checkpoint), **changes})


def test_everything_in_a_workspace_is_verified(workspace: Path) -> None:
    found = problems(workspace)
    (version,) = (workspace / "staging" / "versions").glob("[!.]*")
    of_a_run = {"checkpoints/step-00000001", "checkpoints/step-00000002", "export", "."}
    assert set(found) == {
        version.relative_to(workspace).as_posix(),
        *((Path("output/run-1") / name).as_posix() for name in of_a_run),
        *((Path("output/run-2") / name).as_posix() for name in of_a_run),
    }
    assert not any(found.values())


@pytest.mark.parametrize("place", [".", "output", "output/run-1"])
def test_a_replaced_checkpoint_is_found_through_the_result(workspace: Path, place: str) -> None:
    output = workspace / "output" / "run-1"
    replace(output / "checkpoints" / "step-00000002", metrics={"accuracy": 1.0})
    found = {path: problem for path, problem in problems(workspace / place).items() if problem}
    assert list(found) == [output.relative_to(workspace / place).as_posix()]
    ((problem,),) = found.values()
    assert "step-00000002 is not the checkpoint that the training wrote" in problem


def test_a_replaced_checkpoint_is_found_through_the_export(workspace: Path) -> None:
    output = workspace / "output" / "run-1"
    replace(output / "checkpoints" / "step-00000001", step=3)
    (problem,) = problems(output)["."]
    assert "step-00000001 is not the checkpoint that the training wrote" in problem


@pytest.mark.parametrize("folder", ["checkpoints/step-00000001", "export"])
def test_an_edited_manifest_is_found(workspace: Path, folder: str) -> None:
    manifest = workspace / "output" / "run-1" / folder / "manifest.json"
    manifest.write_text(manifest.read_text().replace('"step": 1', '"step": 3'))
    assert problems(workspace / "output" / "run-1")[folder] == ["manifest.json is damaged"]


def test_a_missing_checkpoint_is_found(workspace: Path) -> None:
    output = workspace / "output" / "run-1"
    (output / "checkpoints" / "step-00000002" / "manifest.json").unlink()
    (problem,) = problems(output)["."]
    assert "step-00000002 is missing or incomplete" in problem


@pytest.mark.parametrize("content", ["{", "[]", '{"checkpoint": 1}'])
def test_a_damaged_result_is_found(workspace: Path, content: str) -> None:
    output = workspace / "output" / "run-1"
    (output / "result.json").write_text(content)
    assert problems(output)["."] == ["result.json is damaged"]


@pytest.mark.parametrize("folder", ["checkpoints/step-00000001", "export"])
def test_a_flipped_byte_is_found(workspace: Path, folder: str) -> None:
    output = workspace / "output" / "run-1"
    (output / folder / "weights").write_bytes(b"v")
    (problem,) = problems(output)[folder]
    assert "different from the manifest: weights" in problem
