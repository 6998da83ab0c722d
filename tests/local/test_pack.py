"""`kubetrain pack` as a user runs it: the same bytes on every machine, and all of them or nothing."""

import json
import os
import pty
import shutil
import signal
import subprocess
import tarfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import groupby
from pathlib import Path

import pytest

from kubetrain_pipelines.cli.verify import verify_folder
from kubetrain_trainer.data.image_folder import list_images
from kubetrain_trainer.durable_files import sha256_of
from support.cli import KUBETRAIN, Finished, interrupt, kubetrain, start

SHARD_SIZE = ("--shard-size", "100KB")


def contents(folder: Path) -> dict[str, str]:
    return {path.relative_to(folder).as_posix(): sha256_of(path) for path in folder.rglob("*") if path.is_file()}


def webdataset_samples(shard: Path) -> Iterator[dict[str, bytes]]:
    """Group consecutive members with the same name up to the first dot, as WebDataset does."""
    with tarfile.open(shard) as archive:
        named = ((*member.name.split(".", 1), archive.extractfile(member)) for member in archive)
        for key, group in groupby(named, key=lambda each: each[0]):
            yield {"__key__": key.encode(), **{extension: file.read() for _, extension, file in group if file}}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def one_image(folder: Path, name: str = "train/cat/1.jpg") -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"image")
    return folder


def test_the_shards_hold_what_the_folder_holds(digits: Path, tmp_path: Path) -> None:
    finished = kubetrain("pack", digits, tmp_path / "out", *SHARD_SIZE, "--json")
    assert finished.exit_code == 0, finished.output
    report = json.loads(finished.output)
    assert (report["images"], report["classes"], report["out"]) == (1797, 10, str(tmp_path / "out"))
    for split in ("train", "val", "test"):
        shards = sorted(tmp_path.glob(f"out/{split}/*.tar"))
        samples = [sample for shard in shards for sample in webdataset_samples(shard)]
        folder = list_images(digits, split)
        expected = Counter(
            (Path(path).read_bytes(), b"%d" % label) for path, label in zip(folder.paths, folder.labels, strict=True)
        )
        assert Counter((sample["png"], sample["cls"]) for sample in samples) == expected
        assert len({sample["__key__"] for sample in samples}) == len(samples)
        assert report["splits"][split] == {
            "images": len(samples),
            "shards": len(shards),
            "bytes": sum(shard.stat().st_size for shard in shards),
        }
    assert kubetrain("verify", tmp_path / "out").exit_code == 0


def test_the_same_bytes_under_any_umask_locale_hash_seed_and_order_of_files(digits: Path, tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    for folder, backwards in ((here, False), (there, True)):
        for source in sorted(digits.glob("*/*/1*.png"), reverse=backwards):
            for name in (source.name, f"é {source.name}"):
                target = folder / "in" / source.parent.relative_to(digits) / name
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, target)
        (folder / "in/train/1").rename(folder / "in/train/ü")
    command = [KUBETRAIN, "pack", "in", "out", *SHARD_SIZE]
    settings = [
        (here, "022", {"LC_ALL": "C.utf8", "PYTHONHASHSEED": "1", "TZ": "UTC"}),
        (there, "077", {"LC_ALL": "C", "PYTHONHASHSEED": "2", "TZ": "Asia/Tokyo", "PYTHONUTF8": "0"}),
    ]
    for folder, umask, environment in settings:
        for path in ("val/1", "test/1"):
            shutil.rmtree(folder / "in" / path)
        without_utf_8 = {"PYTHONCOERCECLOCALE": "0", **environment}
        under_umask = ["sh", "-c", f'umask {umask}; exec "$@"', "sh", *command]
        subprocess.run(under_umask, cwd=folder, env={**os.environ, **without_utf_8}, check=True)
    assert len(contents(here / "out")) > 5
    assert contents(here / "out") == contents(there / "out")


def test_a_dataset_version_is_packed_as_the_folder_it_was_made_from(tmp_path: Path) -> None:
    one_image(tmp_path / "in")
    report = json.loads(kubetrain("sync", tmp_path / "in", tmp_path / "staging", "--json").output)
    version = tmp_path / "staging/versions" / report["digest"]
    assert kubetrain("pack", version, tmp_path / "of-version").exit_code == 0
    assert kubetrain("pack", tmp_path / "in", tmp_path / "of-folder").exit_code == 0
    assert contents(tmp_path / "of-version") == contents(tmp_path / "of-folder")


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Enough to interrupt: each shard takes a while to reach the disk."""
    for number in range(60):
        one_image(tmp_path / "in", f"train/cat/{number}.jpg")
        os.truncate(tmp_path / f"in/train/cat/{number}.jpg", 4_000_000)
    return tmp_path / "in"


def pack_until_a_shard_is_there(large: Path, out: Path) -> "subprocess.Popen[str]":
    process = start("pack", large, out, "--shard-size", "8MB")
    partial = out.with_name(f".{out.name}.partial")
    while not list(partial.glob("data/train/*-000002.tar")):
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.001)
    return process


@pytest.mark.parametrize(("with_signal", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing(large: Path, tmp_path: Path, with_signal: signal.Signals, exit_code: int) -> None:
    stopped = interrupt(pack_until_a_shard_is_there(large, tmp_path / "out"), with_signal)
    assert (stopped.exit_code, stopped.output.split()) == (exit_code, ["stopped"])
    assert names_in(tmp_path) == ["in"]


def test_after_a_sigkill_nothing_looks_complete_and_the_next_pack_succeeds(large: Path, tmp_path: Path) -> None:
    interrupt(pack_until_a_shard_is_there(large, tmp_path / "out"), signal.SIGKILL)
    assert names_in(tmp_path) == [".out.partial", "in"]
    assert kubetrain("pack", large, tmp_path / "out").exit_code == 0
    assert names_in(tmp_path) == ["in", "out"]
    assert verify_folder(tmp_path / "out")[0].problems == []


def test_a_progress_bar_on_a_terminal_and_only_there(digits: Path, tmp_path: Path) -> None:
    terminal, its_end = pty.openpty()
    process = subprocess.Popen(
        [KUBETRAIN, "pack", digits, tmp_path / "seen"], stdout=subprocess.PIPE, stderr=its_end, text=True
    )
    os.close(its_end)
    shown = b"".join(chunks_until_closed(terminal))
    assert b"1797/1797 images" in shown
    unseen = kubetrain("pack", digits, tmp_path / "unseen")
    assert unseen.output == process.communicate()[0].replace("/seen", "/unseen")
    assert unseen.output.startswith("packed 1797 images of 10 classes into 3 shards, ")


def chunks_until_closed(terminal: int) -> Iterator[bytes]:
    with suppress(OSError):  # raised when the other end of the terminal is closed
        while chunk := os.read(terminal, 1 << 16):
            yield chunk
    os.close(terminal)


def assert_refused(finished: Finished, exit_code: int, says: str, tmp_path: Path) -> None:
    assert finished.exit_code == exit_code, finished.output
    assert len(finished.output.splitlines()) == 1
    assert finished.output.startswith("error: ")
    assert says in finished.output
    assert not {"out", ".out.partial"}.intersection(names_in(tmp_path))


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        ("rm -r in", "in is not a directory"),
        ("mv in/train in/training", "the dataset has no folder 'train' (it has: training)"),
        ("mkdir in/train/dog", "in/train/dog has no images (.png, .jpg, .jpeg, .bmp)"),
        ("mkdir -p in/val/cat", "in/val has no images"),
        ("rm in/train/cat/*", "in/train/cat has no images"),
        ("mv in/train/cat/1.jpg in/train/cat/1.webp", "(.png, .jpg, .jpeg, .bmp); it has 1 .webp: add images"),
        ("mkdir -p in/val; cp -r in/train/cat in/val/dog", "in/val has class 'dog' that train/ does not have"),
        (": > in/train/cat/2.jpg", "in/train/cat/2.jpg is empty"),
        ("mkdir in/train/cat/2.jpg", "in/train/cat/2.jpg is not a file"),
        ("mkfifo in/train/cat/2.jpg", "in/train/cat/2.jpg is not a file"),
        ("ln -s nowhere in/train/cat/2.jpg", "cannot read {tmp_path}/in/train/cat/2.jpg (No such file or directory)"),
    ],
)
def test_a_folder_that_cannot_be_packed(tmp_path: Path, damage: str, says: str) -> None:
    one_image(tmp_path / "in")
    subprocess.run(["sh", "-c", damage], cwd=tmp_path, check=True)
    finished = kubetrain("pack", tmp_path / "in", tmp_path / "out")
    assert_refused(finished, 1, says.format(tmp_path=tmp_path), tmp_path)


def test_an_unreadable_image(tmp_path: Path) -> None:
    image = one_image(tmp_path / "in") / "train/cat/1.jpg"
    image.chmod(0)
    if os.access(image, os.R_OK):
        pytest.skip("root may read every file")
    finished = kubetrain("pack", tmp_path / "in", tmp_path / "out")
    assert_refused(finished, 1, "in/train/cat/1.jpg (Permission denied)", tmp_path)


def test_hidden_folders_and_files_beside_the_splits_are_ignored(tmp_path: Path) -> None:
    one_image(tmp_path / "in")
    one_image(tmp_path / "in/.cache")
    (tmp_path / "in/lost+found").mkdir()
    (tmp_path / "in/README.md").write_text("about the images")
    (tmp_path / "in/train/.ipynb_checkpoints").mkdir()
    (tmp_path / "in/train/cat/2.webp").write_bytes(b"")
    packed = kubetrain("pack", tmp_path / "in", tmp_path / "out")
    assert packed.exit_code == 0
    assert "in/train: 1 images are read and these are left out: 1 folder .ipynb_checkpoints, 1 .webp" in packed.output
    assert names_in(tmp_path / "out") == ["manifest.json", "train"]


def test_links_are_followed_as_in_training(tmp_path: Path) -> None:
    one_image(tmp_path / "elsewhere")
    (tmp_path / "in/train").mkdir(parents=True)
    (tmp_path / "in/train/cat").symlink_to(tmp_path / "elsewhere/train/cat")
    assert kubetrain("pack", tmp_path / "in", tmp_path / "linked").exit_code == 0
    assert kubetrain("pack", tmp_path / "elsewhere", tmp_path / "real").exit_code == 0
    assert contents(tmp_path / "linked") == contents(tmp_path / "real")


@pytest.mark.parametrize("size", ["64QB", "0", "-5MB", "lots"])
def test_an_invalid_shard_size_is_refused(tmp_path: Path, size: str) -> None:
    finished = kubetrain("pack", one_image(tmp_path / "in"), tmp_path / "out", f"--shard-size={size}")
    assert_refused(
        finished, 2, f"--shard-size must be a size such as 64MB, 1GB or a number of bytes, not '{size}'", tmp_path
    )


@pytest.mark.parametrize("there", ["mkdir there", "echo mine > there", "ln -s nowhere there"])
def test_an_existing_target_is_not_touched(tmp_path: Path, there: str) -> None:
    subprocess.run(["sh", "-c", there], cwd=tmp_path, check=True)
    before = identity(tmp_path / "there")
    finished = kubetrain("pack", one_image(tmp_path / "in"), tmp_path / "there")
    assert_refused(finished, 1, "there already exists", tmp_path)
    assert identity(tmp_path / "there") == before


def identity(path: Path) -> tuple[int, ...]:
    status = path.lstat()
    return status.st_ino, status.st_mode, status.st_size, status.st_mtime_ns


def test_a_target_inside_the_images_is_refused(tmp_path: Path) -> None:
    finished = kubetrain("pack", one_image(tmp_path / "in"), tmp_path / "in/shards")
    assert_refused(finished, 1, "in/shards is inside", tmp_path)
    assert names_in(tmp_path / "in") == ["train"]


def test_a_target_that_cannot_be_written(tmp_path: Path) -> None:
    finished = kubetrain("pack", one_image(tmp_path / "in"), "/proc/nowhere/out")
    assert_refused(finished, 1, "cannot write to /proc/nowhere/out (", tmp_path)


def test_a_full_disk_leaves_nothing(tmp_path: Path, large: Path) -> None:
    """A limit on the size of files makes writes fail as on a full disk."""
    limited = ["sh", "-c", 'ulimit -f 10000; exec "$@"', "sh", KUBETRAIN, "pack", large, tmp_path / "out"]
    ran = subprocess.run(limited, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    assert_refused(Finished(ran.returncode, ran.stdout, 0), 1, "out (File too large)", tmp_path)
