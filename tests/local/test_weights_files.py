"""The files of an exported PyTorch model."""

from pathlib import Path

import pytest
import torch

from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.pytorch_ddp.export import find_weights, read_weights, write_safetensors
from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start_python

WEIGHTS = {
    "embedding": torch.arange(12.0).reshape(4, 3),
    "bias": torch.ones(3, dtype=torch.bfloat16),
    "transposed": torch.arange(6).reshape(2, 3).t(),
    "steps": torch.tensor(7),
    "tied": torch.arange(12.0).reshape(4, 3),
}
CPU = torch.device("cpu")


def listing(folder: Path) -> list[dict[str, str]]:
    return [{"name": each.name} for each in folder.iterdir()]


@pytest.mark.parametrize(
    ("largest", "files"),
    [
        (1 << 20, ["model.safetensors"]),
        (
            60,
            [
                "model-00001-of-00003.safetensors",
                "model-00002-of-00003.safetensors",
                "model-00003-of-00003.safetensors",
            ],
        ),
    ],
)
def test_weights_are_read_as_they_were_written(largest: int, files: list[str], tmp_path: Path) -> None:
    sizes = {name: tensor.nbytes for name, tensor in WEIGHTS.items()}
    write_safetensors(tmp_path, sizes, WEIGHTS.__getitem__, largest)
    assert sorted(path.name for path in tmp_path.glob("*.safetensors")) == files
    read = read_weights(find_weights(tmp_path, listing(tmp_path)), CPU)
    assert read.keys() == WEIGHTS.keys()
    for name, tensor in WEIGHTS.items():
        torch.testing.assert_close(read[name], tensor)


def test_a_file_that_is_not_listed_is_not_read(tmp_path: Path) -> None:
    for name in ("model.pt", "model.safetensors", "notes.txt"):
        (tmp_path / name).write_bytes(b"")
    assert find_weights(tmp_path, [{"name": "notes.txt"}, {"name": "model.safetensors"}]).name == "model.safetensors"
    with pytest.raises(KubetrainError, match="lists no weights of this trainer"):
        find_weights(tmp_path, [{"name": "notes.txt"}])


def test_a_damaged_header_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"\xff" * 64)
    with pytest.raises(KubetrainError, match=r"model\.safetensors is damaged \(.*eader"):
        read_weights(tmp_path / "model.safetensors", CPU)


def test_no_more_than_a_file_is_read_at_once(tmp_path: Path) -> None:
    asked: list[tuple[str, int]] = []

    def read(name: str) -> torch.Tensor:
        asked.append((name, len(list(tmp_path.glob("*.safetensors")))))
        return WEIGHTS[name]

    write_safetensors(tmp_path, {name: tensor.nbytes for name, tensor in WEIGHTS.items()}, read, 60)
    assert asked == [("embedding", 0), ("bias", 0), ("transposed", 1), ("steps", 1), ("tied", 2)]


def test_the_library_of_safetensors_reads_an_index_in_the_usual_form(tmp_path: Path) -> None:
    from transformers.utils.hub import get_checkpoint_shard_files

    write_safetensors(tmp_path, {name: tensor.nbytes for name, tensor in WEIGHTS.items()}, WEIGHTS.__getitem__, 60)
    files, metadata = get_checkpoint_shard_files(str(tmp_path), str(find_weights(tmp_path, listing(tmp_path))))
    assert [Path(each).name for each in files] == sorted(path.name for path in tmp_path.glob("*.safetensors"))
    assert sorted(metadata["all_checkpoint_keys"]) == sorted(WEIGHTS)


@pytest.mark.parametrize(("weights_format", "file"), [("pytorch", "model.pt"), ("safetensors", "model.safetensors")])
def test_a_training_exports_its_weights_in_the_format_that_is_set(
    weights_format: str, file: str, tmp_path: Path
) -> None:
    settings = ("--data", "synthetic", "--max-steps", "1", "--batch-size", "8", "--metrics-port", "0")
    places = ("--data-dir", ".", "--output-dir", "run")
    process = start_python(
        *("-m", "kubetrain_trainer.pytorch_ddp.train", *places, *settings, "--weights-format", weights_format),
        cwd=tmp_path,
    )
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0, output
    assert [listed["name"] for listed in TrainingOutput(tmp_path / "run").read_export()["files"]] == [file]


@pytest.mark.parametrize(("sharding", "is_safetensors"), [("none", False), ("full", True)])
def test_by_default_the_format_follows_the_sharding(sharding: str, is_safetensors: bool) -> None:
    assert TrainConfig(sharding=sharding).exports_safetensors is is_safetensors
    assert TrainConfig(sharding=sharding, weights_format="pytorch").exports_safetensors is False
    assert TrainConfig(sharding=sharding, weights_format="safetensors").exports_safetensors is True
