"""JPEG files that a GPU with a decoder of its own decodes."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.left_out import DamagedImage
from kubetrain_trainer.pytorch_ddp.image_batches import EncodedBatch
from kubetrain_trainer.pytorch_ddp.jpeg_decoder import decodes_on_gpu, describe_decoder, has_decoder, obstacle
from kubetrain_trainer.pytorch_ddp.task import build_task
from support.jpeg_pictures import LEVEL, encoded, loaded, picture, without_tables, write, write_mixture

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available() or bool(obstacle()), reason="needs a GPU that decodes JPEG files"),
    pytest.mark.timeout(300),
]
GPU = "cuda:0"
CHANGES = [{}, {"recipe": "standard"}, {"flip": 1.0, "evaluation_crop": 0.8}, {"recipe": "strong", "rand_augment": 0}]


def test_a_gpu_with_a_decoder_is_chosen() -> None:
    automatic = TrainConfig(jpeg_decoder="auto")
    assert decodes_on_gpu(automatic) == has_decoder()
    assert describe_decoder(automatic) == f"JPEG decoded by the {'GPU' if has_decoder() else 'CPU'}"
    assert describe_decoder(replace(automatic, recipe="strong")) == "JPEG decoded by the CPU"


@pytest.mark.parametrize("settings", CHANGES)
def test_the_same_parts_of_the_same_images_are_seen(settings: dict[str, object], tmp_path: Path) -> None:
    """Among them are gray and progressive files, and PNG."""
    write_mixture(tmp_path)
    ours, our_targets = loaded(tmp_path, "gpu", GPU, **settings)
    usual, usual_targets = loaded(tmp_path, "cpu", GPU, **settings)
    assert torch.equal(our_targets, usual_targets)
    differences = (ours - usual).abs().mean((1, 2, 3)) / LEVEL
    assert 0 < differences.max() < 3, "another decoder and another rounding, but no other part of an image"
    again, _ = loaded(tmp_path, "gpu", GPU, **settings)
    assert torch.equal(again, ours)


def test_cmyk_is_decoded_as_before(tmp_path: Path) -> None:
    write(tmp_path, [encoded(picture(number).convert("CMYK" if number % 2 else "RGB")) for number in range(8)])
    ours, usual = (loaded(tmp_path, each, GPU)[0] for each in ("gpu", "cpu"))
    assert torch.equal(ours[1::2], usual[1::2])
    assert ((ours - usual).abs().mean() / LEVEL) < 3


def test_damaged_files_are_named_or_left_out(tmp_path: Path) -> None:
    contents = [encoded(picture(number)) for number in range(24)]
    contents[4] = without_tables(contents[4])
    contents[9] = contents[9][: len(contents[9]) // 2]
    write(tmp_path, contents)
    for allowed in range(2):
        with pytest.raises(DamagedImage, match=r"train/./0[49]\.jpg in the dataset is not an image that can be read"):
            loaded(tmp_path, "gpu", GPU, skip_damaged=allowed)
    ours, usual = (loaded(tmp_path, each, GPU, skip_damaged=2)[0] for each in ("gpu", "cpu"))
    assert ((ours - usual).abs().mean((1, 2, 3)) / LEVEL).max() < 3


def test_the_decoder_leaves_alone_what_earlier_work_still_reads(tmp_path: Path) -> None:
    write_mixture(tmp_path)
    task = build_task(TrainConfig(image_size=160, jpeg_decoder="gpu"), tmp_path)
    images, _ = task.collate([task.training_data()[index] for index in range(24)])  # type: ignore[misc]
    assert isinstance(images, EncodedBatch)
    device = torch.device(GPU)
    for _ in range(5):
        read = [torch.full((size,), 7, dtype=torch.uint8, device=device) for size in range(60_000, 300_000, 10_000)]
        torch.cuda.synchronize()
        torch.cuda._sleep(10**8)
        sums = [each.sum() for each in read]
        expected = [7 * len(each) for each in read]
        del read  # their memory is free for this stream, whose sums have yet to be computed
        images.to(device)
        assert [each.item() for each in sums] == expected
