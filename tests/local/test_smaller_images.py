"""`kubetrain pack --shorter-side`: large images are made smaller once, instead of read whole in each epoch."""

import io
import json
import os
import signal
import tarfile
import time
from contextlib import closing, suppress
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from PIL.ExifTags import Base

from kubetrain_components.pack_dataset.plan import plan_pack
from kubetrain_components.pack_dataset.smaller_images import copy_images
from kubetrain_trainer.errors import KubetrainError
from kubetrain_trainer.pytorch_ddp.task import image_data
from kubetrain_trainer.settings.config import TrainConfig
from support.cli import interrupt, kubetrain, start
from support.interrupt_at import interrupt_at, uses_locks_of_futures

SIDE = 60


def photograph(mode: str = "RGB", size: tuple[int, int] = (400, 300)) -> Image.Image:
    """A picture without fine detail, so that a smaller one shows the same."""
    across, down = np.meshgrid(np.linspace(0, 6, size[0]), np.linspace(0, 4, size[1]))
    waves = [np.sin(across + phase) * np.cos(down) for phase in (0, 1, 2)]
    return Image.fromarray((127 + 100 * np.stack(waves, -1)).astype(np.uint8)).convert(mode)


def save(image: Image.Image, path: Path, **options: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    image.save(path, **options)
    return path


def packed_images(out: Path) -> dict[str, bytes]:
    """The packed files by the original's name, without class and hash."""
    found = {}
    for shard in out.glob("*/*.tar"):
        with tarfile.open(shard) as archive:
            for member in archive:
                if not member.name.endswith(".cls") and (file := archive.extractfile(member)):
                    found[member.name.rpartition("-")[2]] = file.read()
    return found


def packed(folder: Path, *options: str) -> tuple[dict[str, bytes], dict[str, object], str]:
    finished = kubetrain("pack", folder / "in", folder / "out", "--json", *options)
    assert finished.exit_code == 0, finished.output
    *notes, report = finished.output.splitlines()
    return packed_images(folder / "out"), json.loads(report), "\n".join(notes)


def opened(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content))


@pytest.mark.parametrize(
    ("name", "mode", "kind", "packed_mode"),
    [
        ("color.jpg", "RGB", "JPEG", "RGB"),
        ("gray.jpg", "L", "JPEG", "L"),
        ("print.jpg", "CMYK", "JPEG", "RGB"),
        ("color.png", "RGB", "PNG", "RGB"),
        ("palette.png", "P", "PNG", "RGB"),
        ("transparent.png", "RGBA", "PNG", "RGB"),
        ("color.bmp", "RGB", "BMP", "RGB"),
    ],
)
def test_a_larger_image_is_packed_with_this_shorter_side_and_looks_the_same(
    tmp_path: Path, name: str, mode: str, kind: str, packed_mode: str
) -> None:
    original = save(photograph(mode), tmp_path / "in/train/cat" / name)
    images, report, _ = packed(tmp_path, "--shorter-side", str(SIDE))
    image = opened(images[name])
    assert (image.format, image.mode, image.size, report["smaller"]) == (kind, packed_mode, (80, 60), 1)
    expected = Image.open(original).convert(packed_mode).resize((80, 60), Image.Resampling.BOX)
    assert np.abs(np.asarray(image, int) - np.asarray(expected, int)).mean() < 3


def test_other_images_are_packed_as_they_are_and_damaged_ones_are_named(tmp_path: Path) -> None:
    small = save(photograph(size=(90, SIDE)), tmp_path / "in/train/cat/small.jpg")
    deep = save(Image.fromarray(np.full((200, 200), 999, np.uint16)), tmp_path / "in/train/cat/deep.png")
    damaged = save(photograph(), tmp_path / "in/train/cat/damaged.jpg")
    damaged.write_bytes(damaged.read_bytes()[:900])
    images, report, notes = packed(tmp_path, "--shorter-side", str(SIDE))
    assert images == {path.name: path.read_bytes() for path in (small, deep, damaged)}
    assert report["smaller"] == 0
    assert notes == "note: packed as they are, because they cannot be decoded: train/cat/damaged.jpg"


def test_an_image_that_cannot_be_read_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unlike a damaged one: it is no reason to pack it as it is."""
    path = save(photograph(), tmp_path / "in/train/cat/1.jpg")
    plan = plan_pack(tmp_path / "in", tmp_path / "out", 10**9)
    path.unlink()
    with pytest.raises(KubetrainError, match=r"^cannot read .*1\.jpg \(No such file"):
        list(copy_images(plan, tmp_path, SIDE))
    save(photograph(), path)
    monkeypatch.setattr(Image.Image, "resize", lambda *_: exhausted())
    with pytest.raises(MemoryError):
        list(copy_images(plan, tmp_path, SIDE))


def exhausted() -> None:
    raise MemoryError


def test_which_side_is_up_is_kept_and_other_metadata_are_not(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[Base.Orientation], exif[Base.Artist] = 6, "somebody"
    save(photograph(), tmp_path / "in/train/cat/turned.jpg", exif=exif, comment=b"from home", icc_profile=b"profile")
    save(photograph(), tmp_path / "in/train/cat/profiled.png", icc_profile=b"profile")
    images, _, _ = packed(tmp_path, "--shorter-side", str(SIDE))
    assert dict(opened(images["turned.jpg"]).getexif()) == {Base.Orientation: 6}
    assert b"from home" not in images["turned.jpg"]
    assert not any("icc_profile" in opened(each).info for each in images.values())


def test_the_shards_are_as_large_as_the_smaller_images_allow(tmp_path: Path) -> None:
    """They are filled, verified, and the same once more."""
    for number in range(12):
        save(photograph(), tmp_path / f"in/train/cat/{number}.jpg", quality=100)
    size = (tmp_path / "in/train/cat/0.jpg").stat().st_size
    _, whole, _ = packed(tmp_path, "--shard-size", str(3 * size))
    (tmp_path / "out").rename(tmp_path / "whole")
    _, smaller, _ = packed(tmp_path, "--shard-size", str(3 * size), "--shorter-side", str(SIDE))
    assert (whole["shards"], smaller["shards"]) == (6, 1)
    assert kubetrain("verify", tmp_path / "out").exit_code == 0
    first = packed_images(tmp_path / "out")
    (tmp_path / "out").rename(tmp_path / "first")
    assert packed(tmp_path, "--shorter-side", str(SIDE))[0] == first
    assert sorted(path.name for path in tmp_path.iterdir()) == ["first", "in", "out", "whole"]


def test_a_trainer_reads_them(tmp_path: Path) -> None:
    for name in ("cat/1", "dog/1"):
        save(photograph(), tmp_path / f"in/train/{name}.jpg")
    packed(tmp_path, "--shorter-side", str(SIDE))
    samples = image_data(TrainConfig(data="tar_shards", image_size=32), tmp_path / "out").training()
    assert [(tuple(pixels.shape), label) for pixels, label in map(samples.__getitem__, range(2))] in (
        [((3, 32, 32), 0), ((3, 32, 32), 1)],
        [((3, 32, 32), 1), ((3, 32, 32), 0)],
    )


@pytest.mark.parametrize(("with_signal", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_while_images_are_made_smaller_leaves_nothing(
    tmp_path: Path, with_signal: signal.Signals, exit_code: int
) -> None:
    first = save(photograph(size=(2000, 1500)), tmp_path / "in/train/cat/0.jpg")
    for number in range(1, 400):
        os.link(first, first.with_name(f"{number}.jpg"))
    process = start("pack", tmp_path / "in", tmp_path / "out", "--shorter-side", str(SIDE))
    while len(list(tmp_path.glob(".out.partial/copies/train/cat/*"))) < 3:
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.001)
    stopped = interrupt(process, with_signal)
    assert (stopped.exit_code, stopped.output.split()) == (exit_code, ["stopped"])
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", range(1, 120))
def test_an_interrupt_at_any_moment_ends_the_threads(tmp_path: Path, moment: int) -> None:
    for number in range(3):
        save(photograph(), tmp_path / f"in/train/cat/{number}.jpg")
    plan = plan_pack(tmp_path / "in", tmp_path / "out", 10**9)
    copying = closing(copy_images(plan, tmp_path / "copies", SIDE))
    with suppress(KeyboardInterrupt), copying as copied, interrupt_at(moment, uses_locks_of_futures):
        list(copied)


@pytest.mark.parametrize("pixels", ["0", "-5", "large"])
def test_an_invalid_length_is_refused(tmp_path: Path, pixels: str) -> None:
    save(photograph(), tmp_path / "in/train/cat/1.jpg")
    finished = kubetrain("pack", tmp_path / "in", tmp_path / "out", f"--shorter-side={pixels}")
    assert finished.exit_code == 2
    assert "--shorter-side" in finished.output
