"""JPEG files that the device decodes. The CPU stands in for a GPU, with the same functions of torchvision."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch import Tensor

from kubetrain_trainer.augmentation import NOTHING
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting
from kubetrain_trainer.left_out import DamagedImage
from kubetrain_trainer.metrics_log import read_metrics
from kubetrain_trainer.pytorch_ddp.image_batches import EncodedBatch
from kubetrain_trainer.pytorch_ddp.jpeg_decoder import decodes_on_gpu, describe_decoder
from kubetrain_trainer.pytorch_ddp.jpeg_files import (
    CHUNK_NUMBERS,
    CHUNK_PIXELS,
    EDGE,
    MAX_BYTES,
    JpegFile,
    in_chunks,
    size_to_decode,
)
from kubetrain_trainer.pytorch_ddp.task import build_task
from support.jpeg_pictures import LEVEL, encoded, loaded, picture, without_tables, write, write_mixture

MIXED = {"recipe": "strong", "rand_augment": 0}
WITHOUT_CONVERSION = b"\xff\xee\x00\x0eAdobe\x00\x64" + bytes(5)
"""The segment of a JPEG file that says that its colors are RGB."""
WITHOUT_GPU = """
import runpy
from kubetrain_trainer.pytorch_ddp import jpeg_decoder
jpeg_decoder.obstacle = lambda: ""
runpy.run_module("kubetrain_trainer.pytorch_ddp.train", run_name="__main__")
"""


@pytest.fixture
def cpu_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a training without a GPU decode on its device as if that were one."""
    monkeypatch.setattr("kubetrain_trainer.pytorch_ddp.jpeg_decoder.obstacle", lambda: "")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_mixture(tmp_path)
    return tmp_path


@pytest.mark.usefixtures("cpu_decodes")
@pytest.mark.parametrize("settings", [{}, {"recipe": "standard"}, {"flip": 1.0, "evaluation_crop": 0.8}, MIXED])
def test_the_same_parts_of_the_same_images_are_seen(settings: dict[str, Any], folder: Path) -> None:
    (ours, our_targets), (usual, usual_targets) = (loaded(folder, each, **settings) for each in ("gpu", "cpu"))
    assert torch.equal(our_targets, usual_targets)
    differences = (ours - usual).abs().mean((1, 2, 3)) / LEVEL
    assert 0 < differences.max() < 0.5, "another decoder and another rounding, but no other part of an image"
    if settings is not MIXED:
        assert torch.equal(ours[2::4], usual[2::4]), "the loading process decodes progressive files"
        assert torch.equal(ours[3::4], usual[3::4])


@pytest.mark.usefixtures("cpu_decodes")
def test_a_photograph_is_not_decoded_at_a_smaller_scale(tmp_path: Path) -> None:
    write(tmp_path, [encoded(picture(number).resize((900, 600)), quality=80) for number in range(8)])
    (ours, _), (usual, _) = (loaded(tmp_path, each, recipe="standard", image_size=64) for each in ("gpu", "cpu"))
    assert 0 < ((ours - usual).abs().mean((1, 2, 3)) / LEVEL).max() < 3


@pytest.mark.usefixtures("cpu_decodes")
@pytest.mark.parametrize("size", [(2, 2), (3, 3), (1, 400), (400, 1)])
def test_of_the_smallest_images_a_pixel_is_left(size: tuple[int, int], tmp_path: Path) -> None:
    write(tmp_path, [encoded(picture(number).resize(size), quality=100) for number in range(24)])
    settings = {"recipe": "standard", "crop_area": 0.08}
    ours, usual = (loaded(tmp_path, each, **settings)[0] for each in ("gpu", "cpu"))
    assert ((ours - usual).abs().mean((1, 2, 3)) / LEVEL).max() < 0.5


@pytest.mark.usefixtures("cpu_decodes")
def test_validation_and_evaluation_decode_as_serving_does(folder: Path) -> None:
    task = build_task(TrainConfig(jpeg_decoder="gpu"), folder)
    assert isinstance(task.data("val")[0][0], Tensor)
    images, _ = task.collate([task.training_data()[index] for index in range(4)])  # type: ignore[misc]
    assert isinstance(images, EncodedBatch)


@pytest.mark.parametrize(
    ("changed", "is_decoded"),
    [
        (encoded, True),
        (lambda image: encoded(image.convert("L")), True),
        (lambda image: encoded(image, subsampling=0), True),
        (lambda image: encoded(image, progressive=True), False),
        (lambda image: encoded(image, keep_rgb=True), False),
        (lambda image: encoded(image)[:2] + WITHOUT_CONVERSION + encoded(image)[2:], False),
        (lambda image: encoded(image, subsampling=0).replace(b"\x02\x11\x01", b"\x02\x22\x01"), False),
        (lambda image: encoded(image.convert("CMYK")), False),
        (lambda image: encoded(image, format="PNG"), False),
        (lambda image: encoded(image)[:-100], False),
        (lambda image: encoded(image)[:-100] + b"\xff\xd9", True),
        (lambda image: encoded(image) + b"a preview", False),
        (lambda image: encoded(image, comment=bytes(60_000)) + bytes(MAX_BYTES) + b"\xff\xd9", False),
        (lambda image: b"not an image\xff\xd9", False),
    ],
)
def test_only_usual_files_are_left_to_the_device(changed: Callable[[Image.Image], bytes], is_decoded: bool) -> None:
    image = picture(0)
    assert size_to_decode(changed(image)) == (image.size if is_decoded else None)


def test_large_images_are_decoded_a_few_at_a_time() -> None:
    def chunks(*pixels: int, heights: tuple[int, ...] = ()) -> list[list[int]]:
        parts = [(0, 0, 1, height) for height in heights or [1] * len(pixels)]
        files = [JpegFile(b"", each, part, (1, 1), 1, False, NOTHING) for each, part in zip(pixels, parts, strict=True)]
        return [[file.pixels for file in files[chunk]] for chunk in in_chunks(files)]

    half = CHUNK_PIXELS // 2
    assert chunks(1, 2) == [[1, 2]]
    assert chunks(half, half, 1, half) == [[half, half], [1, half]]
    assert chunks(CHUNK_PIXELS, 1) == [[CHUNK_PIXELS], [1]]
    assert chunks(CHUNK_PIXELS + 1, 1) == [[CHUNK_PIXELS + 1], [1]]
    high = CHUNK_NUMBERS // 2 // (EDGE + 1) // EDGE * EDGE - EDGE
    assert chunks(1, 2, 3, 4, heights=(1, high, 1, 1)) == [[1, 2], [3, 4]], "in the memory of the largest part"


@pytest.mark.usefixtures("cpu_decodes")
def test_a_file_that_the_device_cannot_decode_is_named(folder: Path) -> None:
    damaged = folder / "train/a/04.jpg"
    damaged.write_bytes(without_tables(damaged.read_bytes()))
    with pytest.raises(DamagedImage, match=r"train/a/04\.jpg in the dataset is not an image that can be read"):
        loaded(folder, "gpu")
    ours, usual = (loaded(folder, each, skip_damaged=1)[0] for each in ("gpu", "cpu"))
    torch.testing.assert_close(ours, usual, atol=20 * LEVEL, rtol=0)
    assert torch.equal(ours[4], ours[5]), "the next one takes its place"


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({}, "this process has no GPU"),
        ({"recipe": "strong"}, "only the CPU changes colors"),
        ({"color_jitter": 0.1}, "only the CPU changes colors"),
        ({"data": "synthetic"}, "synthetic data has no files"),
    ],
)
def test_what_the_gpu_cannot_do_is_refused(settings: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidSetting, match=f"jpeg_decoder cannot be gpu.*{reason}"):
        decodes_on_gpu(TrainConfig.from_dict({"jpeg_decoder": "gpu", **settings}))


def test_without_a_gpu_the_loading_processes_decode() -> None:
    assert not decodes_on_gpu(TrainConfig(jpeg_decoder="auto"))
    assert not describe_decoder(TrainConfig(jpeg_decoder="auto"))


@pytest.mark.slow
def test_a_training_leaves_out_what_its_device_cannot_decode(folder: Path) -> None:
    damaged = folder / "train/b/08.jpg"
    damaged.write_bytes(without_tables(damaged.read_bytes()))
    settings = {"epochs": 3, "batch-size": 8, "log-every": 1, "loader-workers": 2, "metrics-port": 0, "image-size": 64}
    flags = [part for name, value in settings.items() for part in (f"--{name}", value)]
    rows = {}
    for decoder in ("gpu", "cpu"):
        program = [sys.executable, "-c", WITHOUT_GPU, "--data-dir", folder, "--output-dir", folder / decoder, *flags]
        program += ["--recipe", "standard", "--skip-damaged", "1", "--jpeg-decoder", decoder]
        trained = subprocess.run([*map(str, program)], capture_output=True, text=True, check=False)
        assert trained.returncode == 0, trained.stdout + trained.stderr
        assert trained.stdout.count("08.jpg in the dataset is not an image that can be read") == 1, trained.stdout
        # The next epoch's batch may have been loaded before it is known.
        tried = (trained.stdout + trained.stderr).count("could not decode a JPEG file")
        assert tried in ((1, 2) if decoder == "gpu" else (0,))
        rows[decoder] = [row for row in read_metrics(folder / decoder / "metrics.jsonl") if "loss" in row]
    assert len(rows["gpu"]) == 9
    for ours, usual in zip(rows["gpu"], rows["cpu"], strict=True):
        assert ours["loss"] == pytest.approx(usual["loss"], rel=0.05)
