"""Trainers read tar shards of `kubetrain pack` and of other programs."""

import io
import os
import pickle
import re
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import plan_pack
from kubetrain_trainer.data import image_folder, tar_shards
from kubetrain_trainer.data.shard_index import index_path, read_index, scan_shard
from kubetrain_trainer.data.tar_shards import MAX_OPEN, list_classes, list_images
from kubetrain_trainer.errors import KubetrainError

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
TWO = {"a.jpg": b"first", "a.cls": b"0", "b.jpg": b"second", "b.cls": b"1"}


def write_shard(path: Path, files: dict[str, bytes], tar_format: int = tarfile.USTAR_FORMAT) -> Path:
    """Write a shard like other programs do."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w", format=tar_format) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def samples(shards: tar_shards.TarShards) -> list[tuple[bytes, int]]:
    return [(shards.read(sample), label) for sample, label in enumerate(shards.labels)]


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A few hundred images of many sizes, in several shards."""
    for number in range(300):
        split = "val" if number % 5 == 0 else "train"
        path = tmp_path / "in" / split / f"class {number % 3}" / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % number * (number * 7 % 600 + 1))
    write_pack(plan_pack(tmp_path / "in", tmp_path / "out", 60_000))
    return tmp_path / "out"


class TestPacked:
    def test_the_samples_are_those_of_the_folder(self, packed: Path, tmp_path: Path) -> None:
        for split in ("train", "val"):
            folder, shards = image_folder.list_images(tmp_path / "in", split), list_images(packed, split)
            assert len(shards.paths) > 1
            assert shards.classes == folder.classes == list_classes(packed) == ("class 0", "class 1", "class 2")
            originals = ((folder.read(sample), label) for sample, label in enumerate(folder.labels))
            assert Counter(samples(shards)) == Counter(originals)

    def test_an_index_equals_a_scan_of_the_archive(self, packed: Path) -> None:
        shards = sorted(packed.glob("*/*.tar"))
        assert len(shards) > 5
        for shard in shards:
            assert read_index(shard) == scan_shard(shard)

    def test_shards_without_an_index_are_listed_in_the_same_order(self, packed: Path, tmp_path: Path) -> None:
        subprocess.run(["cp", "-r", packed, tmp_path / "bare"], check=True)
        for index in tmp_path.glob("bare/*/*.index.json"):
            index.unlink()
        assert samples(list_images(tmp_path / "bare", "train")) == samples(list_images(packed, "train"))

    def test_little_is_sent_to_a_loading_process(self, packed: Path) -> None:
        shards = list_images(packed, "train")
        sent = pickle.dumps(shards, pickle.HIGHEST_PROTOCOL)
        assert len(sent) < 20 * len(shards.labels) + 2000
        assert samples(pickle.loads(sent)) == samples(shards)

    def test_an_image_is_named_by_its_key_and_shard(self, packed: Path) -> None:
        shards = list_images(packed, "train")
        for sample in (0, len(shards.labels) - 1):
            number = re.match(rb"(\d+?)\1*$", shards.read(sample))
            assert number
            shard = re.escape(f"train/{Path(shards.paths[0 if sample == 0 else -1]).name} in the dataset")
            assert re.fullmatch(rf"[0-9a-f]{{16}}-class_\d-\d+\.jpg in {shard}", shards.name(sample))

    def test_a_folder_of_images_is_distinguished_from_shards(self, packed: Path, tmp_path: Path) -> None:
        with pytest.raises(
            KubetrainError, match=r"out/train holds tar shards, not folders .*: set data.format=tar_shards"
        ):
            image_folder.list_classes(packed)
        with pytest.raises(
            KubetrainError, match=r"in/train holds folders, not tar shards: .* set data.format=image_folder"
        ):
            list_classes(tmp_path / "in")

    @pytest.mark.parametrize(
        ("damage", "message"),
        [
            ("rm train/*0.tar", r"cannot read .*/train/train-000000.tar \(No such file or directory\)"),
            (
                "truncate -s -512 train/*0.tar",
                r"train-000000.tar has \d+ bytes and is not the shard that train-0000",
            ),
            (
                "cp train/*1.tar train/train-000000.tar",
                r"train-000000.tar has \d+ bytes and is not the shard that train-0000",
            ),
            ("truncate -s 99 train/*0.index.json", "train-000000.index.json is damaged: sync or pack again"),
            ("echo '[]' > train/train-000000.index.json", "train-000000.index.json is damaged"),
            ("sed -i 's/\\[/[7,/' train/*0.index.json", "train-000000.index.json is damaged|is not the shard"),
            ("sed -i 's/labels\":\\[/&7,/' train/*0.index.json", "train-000000.index.json is damaged"),
            ("sed -i 's/offsets\":\\[/&99999/' train/*0.index.json", "train-000000.tar has .* and is not the shard"),
            ("sed -i 's/sizes\":\\[/&99999/' train/*0.index.json", "train-000000.tar has .* and is not the shard"),
            ("echo '{' > manifest.json", r"manifest.json is damaged \(.*\): sync or pack again"),
            ("sed -i 's#train/train-000000.tar#../out/x.tar#' manifest.json", "names '../out/x.tar', which is outside"),
            ('sed -i \'s/"split": "train"/"split": "t"/\' manifest.json', "out/train has no tar shards: shards must"),
        ],
    )
    def test_damaged_files_are_named(self, packed: Path, damage: str, message: str) -> None:
        subprocess.run(["sh", "-c", damage], cwd=packed, check=True)
        assert_refused(packed, message)

    def test_a_shard_that_is_truncated_while_in_use(self, packed: Path) -> None:
        shards = list_images(packed, "train")
        os.truncate(shards.paths[-1], 1000)
        with pytest.raises(KubetrainError, match=r"train-\d+.tar was truncated while in use"):
            shards.read(len(shards.labels) - 1)


def assert_refused(data_dir: Path, message: str, split: str = "train") -> None:
    with pytest.raises(KubetrainError, match=message) as refused:
        list_images(data_dir, split)
    assert "\n" not in str(refused.value)


class TestForeign:
    @pytest.mark.parametrize("tar_format", FORMATS)
    def test_shards_of_every_format_are_read(self, tmp_path: Path, tar_format: int) -> None:
        long = "ü" * 60 if tar_format != tarfile.USTAR_FORMAT else "u" * 60
        files = {
            "plain.jpg": b"1" * 700,
            "plain.cls": b"0",
            "./folder.d/and name.JPEG": b"2",
            "./folder.d/and name.cls": b"2\n",
            f"{long}/{long}/x.png": b"3" * 512,
            f"{long}/{long}/x.json": b"{}",
            f"{long}/{long}/x.mask.png": b"not the image",
            f"{long}/{long}/x.cls": b" 10 ",
            "._plain.jpg": b"of another system",
            "README": b"about the shards",
            "last.bmp": b"",
            "last.cls": b"1",
        }
        write_shard(tmp_path / "train" / "any.tar", files, tar_format)
        shards = list_images(tmp_path, "train")
        assert samples(shards) == [(b"1" * 700, 0), (b"2", 2), (b"3" * 512, 10), (b"", 1)]
        assert shards.classes == tuple(map(str, range(11)))

    def test_shards_written_by_the_tar_command_are_read(self, tmp_path: Path) -> None:
        for name, content in TWO.items():
            (tmp_path / name).write_bytes(content)
        (tmp_path / "train").mkdir()
        subprocess.run(["tar", "--sort=name", "-cf", "train/x.tar", *TWO], cwd=tmp_path, check=True)
        assert samples(list_images(tmp_path, "train")) == [(b"first", 0), (b"second", 1)]

    def test_shards_are_sorted_by_name_and_may_be_empty(self, tmp_path: Path) -> None:
        for number in (2, 0, 1):
            files = {"x.jpg": b"of %d" % number, "x.cls": b"%d" % number} if number else {}
            write_shard(tmp_path / "train" / f"{number}.tar", files)
        assert samples(list_images(tmp_path, "train")) == [(b"of 1", 1), (b"of 2", 2)]

    def test_many_threads_read_more_shards_than_a_process_keeps_open(self, tmp_path: Path) -> None:
        for number in range(MAX_OPEN + 50):
            write_shard(tmp_path / "train" / f"{number:04}.tar", {"x.jpg": b"%d" % number, "x.cls": b"0"})
        shards = list_images(tmp_path, "train")
        with ThreadPoolExecutor(8) as threads:
            for numbers in threads.map(lambda _: [int(content) for content, _ in samples(shards)], range(16)):
                assert numbers == list(range(MAX_OPEN + 50))
        opened = [path.resolve() for path in Path("/proc/self/fd").iterdir()]
        assert sum(path.is_relative_to(tmp_path) for path in opened) == MAX_OPEN

    @pytest.mark.parametrize(
        ("files", "message"),
        [
            (
                {"a.jpg": b"x"},
                r"x.tar has 1 images and 0 .cls files in a row with the key 'a': a sample is one image and",
            ),
            ({"a.cls": b"0"}, "x.tar has 0 images and 1 .cls files in a row with the key 'a'"),
            ({**TWO, "b.png": b"another"}, "x.tar has 2 images and 1 .cls files in a row with the key 'b'"),
            ({"c.jpg": b"x", **TWO, "c.cls": b"2"}, "x.tar has 1 images and 0 .cls files in a row with the key 'c'"),
            ({"a.v2.jpg": b"x", "a.cls": b"0"}, "x.tar has 0 images and 1 .cls files"),
            ({"a.jpg": b"x", "a.cls": b"cat"}, "x.tar has b'cat' in 'a.cls': it must be a class number"),
            ({"a.jpg": b"x", "a.cls": b"-1"}, "x.tar has b'-1' in 'a.cls'"),
            ({"a.jpg": b"x", "a.cls": b"1" * 100}, "x.tar has b'1{64}' in 'a.cls'"),
            ({"a.txt": b"x"}, "train has no samples in its shards: each must be KEY.jpg, or .png, and KEY.cls"),
            ({}, "train has no samples in its shards"),
        ],
    )
    def test_a_shard_that_cannot_be_used(self, tmp_path: Path, files: dict[str, bytes], message: str) -> None:
        write_shard(tmp_path / "train" / "x.tar", files)
        assert_refused(tmp_path, message)

    @pytest.mark.parametrize("tar_format", FORMATS)
    def test_a_shard_truncated_anywhere_is_detected(self, tmp_path: Path, tar_format: int) -> None:
        shard = write_shard(
            tmp_path / "whole.tar", {"ü" * 30 + name: content for name, content in TWO.items()}, tar_format
        )
        content = shard.read_bytes()
        assert len(scan_shard(shard)) == 2
        end = content.rindex(b"1") + 1
        for size in range(0, (end // 512 + 1) * 512, 256):
            (tmp_path / "cut.tar").write_bytes(content[:size])
            with pytest.raises(KubetrainError, match=r"cut.tar (is damaged, truncated|has 1 images and 0)"):
                scan_shard(tmp_path / "cut.tar")

    @pytest.mark.parametrize(
        "damage",
        [
            lambda content: content[:1024] + b"\xff" + content[1025:],
            lambda content: content[:2100] + b"\x07" + content[2101:],
            lambda content: b"GIF89a" + content[6:],
            lambda content: b"",
            lambda content: b"\x1f\x8b" + content,
        ],
    )
    def test_a_damaged_header_is_not_the_end(self, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
        shard = write_shard(tmp_path / "train" / "x.tar", TWO)
        shard.write_bytes(damage(shard.read_bytes()))
        assert_refused(tmp_path, "x.tar is damaged, truncated or compressed")

    def test_a_label_that_is_not_one_of_the_classes(self, tmp_path: Path) -> None:
        write_shard(tmp_path / "train" / "x.tar", TWO)
        write_shard(tmp_path / "val" / "y.tar", {**TWO, "c.png": b"third", "c.cls": b"2"})
        assert_refused(tmp_path, r"c.png in val/y.tar in the dataset has label 2, but there are 2 classes", "val")

    def test_a_missing_split(self, tmp_path: Path) -> None:
        write_shard(tmp_path / "train" / "x.tar", TWO)
        (tmp_path / "val").mkdir()
        assert_refused(tmp_path, r"no folder 'tset' \(it has: train, val\); shards must be <split>/\*.tar", "tset")
        assert_refused(tmp_path, "val has no tar shards", "val")

    def test_another_programs_manifest_is_ignored(self, tmp_path: Path) -> None:
        write_shard(tmp_path / "train" / "x.tar", TWO)
        (tmp_path / "manifest.json").write_text('{"files": []}')
        assert list_classes(tmp_path) == ("0", "1")


def test_the_index_is_beside_the_shard() -> None:
    assert index_path(Path("train/train-000001.tar")) == Path("train/train-000001.index.json")
