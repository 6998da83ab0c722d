"""Damaged training images, which may be left out up to a number."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import plan_pack
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.termination import LOG_VARIABLE, parse_termination_message

pytestmark = pytest.mark.slow
DAMAGED = ("3.png", "4.png", "11.png")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixteen images of two shades for training, of which two in sequence and another one are damaged."""
    folder = tmp_path_factory.mktemp("data")
    for split in ("train", "val", "test"):
        for number in range(16):
            path = folder / "image_folder" / split / "ab"[number // 8] / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (200 * (number // 8), 7 * number, 0)).save(path)
            if split == "train" and path.name in DAMAGED:
                path.write_bytes(path.read_bytes()[:-40])
    write_pack(plan_pack(folder / "image_folder", folder / "tar_shards", 8192))
    return folder


def train(framework: str, data: Path, output: Path, *settings: object) -> "subprocess.CompletedProcess[str]":
    package = {"pytorch": "pytorch_ddp", "tensorflow": "tensorflow_multiworker"}[framework]
    program = [sys.executable, "-m", f"kubetrain_trainer.{package}.train", "--output-dir", output]
    folder = data / ("tar_shards" if "tar_shards" in settings else "image_folder")
    program += ["--data-dir", folder, "--epochs", "3", "--batch-size", "4", "--log-every", "1"]
    environment = {**os.environ, LOG_VARIABLE: str(output.with_name("message"))}
    return subprocess.run(
        [*map(str, (*program, *settings))], capture_output=True, text=True, check=False, env=environment
    )


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("framework", "settings"),
    [
        ("pytorch", ("--loader-workers", "2", "--augment", '{"flip": 0.5}')),
        ("pytorch", ("--data", "tar_shards")),
        ("tensorflow", ("--data", "tar_shards")),
        ("tensorflow", ("--augment", '{"flip": 0.5}')),
    ],
)
def test_each_is_named_once_and_another_takes_its_place(
    framework: str, settings: tuple[str, ...], data: Path, tmp_path: Path
) -> None:
    trained = train(framework, data, tmp_path / "run", "--skip-damaged", "3", *settings)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    said = [line for line in trained.stdout.splitlines() if "is left out" in line]
    names = [Path(line.split()[0]).name.rpartition("-")[2] for line in said]  # in shards, the folder is a prefix
    assert sorted(names) == sorted(DAMAGED), said
    assert all(f", {number} of 3 (train.skip_damaged)" in line for number, line in enumerate(said, 1))
    steps = [row for row in read_metrics(tmp_path / "run/metrics.jsonl") if "loss" in row]
    assert len(steps) == 12, "epochs are as long as before"


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_names_that_are_not_utf_8(framework: str, data: Path, tmp_path: Path) -> None:
    """Intact images are trained on, and a damaged one is named."""
    shutil.copytree(data / "image_folder", tmp_path / "image_folder")
    odd = tmp_path / "image_folder/train/a" / os.fsdecode(b"caf\xe9.png")
    for number in DAMAGED:
        (next((tmp_path / "image_folder/train").glob(f"*/{number}"))).rename(odd)
    shutil.copyfile(tmp_path / "image_folder/train/a/0.png", odd)
    (tmp_path / "message").touch()
    trained = train(framework, tmp_path, tmp_path / "run", "--max-steps", 3)
    assert trained.returncode == 0, trained.stdout + trained.stderr
    odd.write_bytes(b"not an image")
    trained = train(framework, tmp_path, tmp_path / "again")
    assert trained.returncode == 1
    assert r"caf\udce9.png in the dataset is not an image that can be read" in trained.stdout.splitlines()[-1]
    assert r"caf\udce9.png" in parse_termination_message((tmp_path / "message").read_text())["error"]


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_a_training_without_a_single_image_fails(framework: str, data: Path, tmp_path: Path) -> None:
    shutil.copytree(data / "image_folder", tmp_path / "image_folder")
    for path in (tmp_path / "image_folder/train").glob("*/*.png"):
        path.write_bytes(b"not an image")
    trained = train(framework, tmp_path, tmp_path / "run", "--skip-damaged", "16")
    assert trained.returncode == 1
    assert trained.stdout.splitlines()[-1].startswith("error: none of the 16 training images can be read")


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow"])
def test_one_more_than_allowed_fails_the_training(framework: str, data: Path, tmp_path: Path) -> None:
    trained = train(framework, data, tmp_path / "run", "--skip-damaged", "2")
    assert trained.returncode == 1
    assert trained.stdout.count("is left out") == 2
    error = trained.stdout.splitlines()[-1]
    assert "png in the dataset is not an image that can be read: replace or remove it" in error
    assert error.endswith("or raise train.skip_damaged (2)")
