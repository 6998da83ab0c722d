"""Shards: the plan says what goes where, and the same folder gives the same bytes everywhere."""

import hashlib
import json
import os
import random
import tarfile
import tracemalloc
from pathlib import Path

import pytest

from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import PackPlan, Sample, parse_size, plan_pack, plan_shards
from kubetrain_pipelines.cli.verify import verify_folder
from kubetrain_trainer.durable_files import read_json
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.manifest import MANIFEST

MEGABYTE = 1_000_000


def write_images(folder: Path, *names: str) -> Path:
    """Images whose content is their own name."""
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(os.fsencode(name))
    return folder


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def pack(folder: Path, out: Path, shard_size: int = MEGABYTE) -> PackPlan:
    plan = plan_pack(folder, out, shard_size)
    write_pack(plan)
    return plan


def members(shard: Path) -> dict[str, bytes]:
    with tarfile.open(shard) as archive:
        content = {member.name: archive.extractfile(member) for member in archive}
        return {name: file.read() for name, file in content.items() if file is not None}


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("128MB", 128_000_000),
        ("1gb", 1_000_000_000),
        ("1.5 GB", 1_500_000_000),
        ("64MiB", 67_108_864),
        ("10k", 10_000),
        ("4096", 4096),
        ("4096B", 4096),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "0", "0.1", "1,5GB", "64MBit", "ten", "1e9", "9" * 400])
def test_invalid_sizes(text: str) -> None:
    with pytest.raises(InvalidSetting, match="--shard-size must be a size such as 64MB") as refused:
        parse_size(text)
    assert f"not '{text}'" in str(refused.value)


class TestPlan:
    def test_the_order_of_the_samples_does_not_matter(self) -> None:
        samples = [Sample(f"train/{number % 4}/{number}.jpg", number % 4, 1000) for number in range(200)]
        shuffled = random.Random(0).sample(samples, k=len(samples))
        assert list(plan_shards(samples, 50_000)) == list(plan_shards(shuffled, 50_000))

    def test_every_shard_has_samples_of_all_classes_and_each_sample_is_in_one(self) -> None:
        samples = [Sample(f"train/{number // 100}/{number}.jpg", number // 100, 1000) for number in range(400)]
        shards = list(plan_shards(samples, 100_000))
        assert len(shards) > 5
        assert all({sample.label for sample in shard.samples} == {0, 1, 2, 3} for shard in shards)
        assert sorted(sample.path for shard in shards for sample in shard.samples) == sorted(
            sample.path for sample in samples
        )

    def test_a_shard_is_as_full_as_its_size_allows(self) -> None:
        of_one = Sample("train/a/0.jpg", 0, 1000).packed_size
        samples = [Sample(f"train/a/{number}.jpg", 0, 1000) for number in range(9)]
        for shard_size, counts in ((4 * of_one + 1024, [4, 4, 1]), (4 * of_one + 1023, [3, 3, 3])):
            shards = list(plan_shards(samples, shard_size))
            assert [len(shard.samples) for shard in shards] == counts
            assert max(shard.size for shard in shards) <= shard_size

    def test_a_sample_larger_than_a_shard_gets_its_own(self) -> None:
        samples = [Sample(f"train/a/{number}.jpg", 0, 5000) for number in range(3)]
        shards = list(plan_shards(samples, 1))
        assert [shard.name for shard in shards] == [f"train/train-00000{number}.tar" for number in range(3)]


class TestKeys:
    def test_names_that_would_collide_stay_apart(self, tmp_path: Path) -> None:
        names = [
            *("train/a/x.jpg", "train/a/x.png", "train/a/x.JPG", "train/a/x.y.jpg", "train/a/x_y.jpg", "train/a/.jpg"),
            *("train/a-x/y.jpg", "train/a/x-y.jpg", "train/a.b/x.jpg", "train/é/é.jpg", "train/é/è.jpg"),
        ]
        pack(write_images(tmp_path / "in", *names), tmp_path / "out")
        packed = members(tmp_path / "out/train/train-000000.tar")
        images = {name: content for name, content in packed.items() if not name.endswith(".cls")}
        assert sorted(images.values()) == sorted(map(os.fsencode, names))
        keys = [name.partition(".")[0] for name in packed]
        assert keys[::2] == keys[1::2]
        assert len(set(keys)) == len(names)

    def test_a_key_is_a_plain_short_file_name(self) -> None:
        for path in ("train/a/b.c.jpg", f"train/{'é' * 100}/{'x' * 250}.JPEG", "train/ -\n/'\udcff\".jpg"):
            key = Sample(path, 0, 1).key
            assert key.isascii()
            assert set(key) <= set("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_-")
            assert len(key) <= 90

    def test_a_key_contains_class_and_name(self) -> None:
        assert Sample("train/cat/0001.jpg", 0, 1).key.endswith("-cat-0001")


class TestBytes:
    def test_they_never_change(self, tmp_path: Path) -> None:
        """On every machine and in every release, because datasets are identified by the hash of their bytes."""
        names = ["train/cat/0001.jpg", "train/dog/a.b.PNG", "train/dog/ü.jpeg", f"train/cat/{'long' * 50}.bmp"]
        pack(write_images(tmp_path / "in", *names), tmp_path / "out")
        shard = (tmp_path / "out/train/train-000000.tar").read_bytes()
        assert hashlib.sha256(shard).hexdigest() == "de580a5411e816bb7bc762820aa062b236943d4348a4b7476924320e1c0c830a"

    def test_members_do_not_depend_on_this_machine(self, tmp_path: Path) -> None:
        pack(write_images(tmp_path / "in", "train/a/x.jpg"), tmp_path / "out")
        with tarfile.open(tmp_path / "out/train/train-000000.tar") as archive:
            for member in archive:
                assert (member.mtime, member.uid, member.gid, member.uname, member.gname) == (0, 0, 0, "", "")
                assert (member.mode, member.isreg()) == (0o444, True)

    def test_the_label_is_the_class_among_those_of_training(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path / "in", "train/b/1.jpg", "train/a/1.jpg", "train/c/1.jpg", "val/c/1.JPEG")
        pack(folder, tmp_path / "out")
        packed = members(tmp_path / "out/val/val-000000.tar")
        assert list(packed.values()) == [b"val/c/1.JPEG", b"2"]
        assert [name.partition(".")[2] for name in packed] == ["jpeg", "cls"]
        assert read_json(tmp_path / "out" / MANIFEST)["classes"] == ["a", "b", "c"]

    @pytest.mark.parametrize("size", [1, 511, 512, 513, 1 << 20, (1 << 20) + 1])
    def test_content_of_any_length_and_the_planned_size(self, tmp_path: Path, size: int) -> None:
        folder = write_images(tmp_path / "in", "train/a/x.jpg")
        content = random.Random(size).randbytes(size)
        (folder / "train/a/x.jpg").write_bytes(content)
        (shard,) = pack(folder, tmp_path / "out").shards
        assert next(iter(members(tmp_path / "out" / shard.name).values())) == content
        assert (tmp_path / "out" / shard.name).stat().st_size == shard.size


class TestManifest:
    def test_it_counts_the_samples_of_every_shard(self, tmp_path: Path) -> None:
        names = [f"{split}/{number % 3}/{number}.jpg" for split in ("train", "val") for number in range(30)]
        pack(write_images(tmp_path / "in", *names), tmp_path / "out", 20_000)
        manifest = read_json(tmp_path / "out" / MANIFEST)
        shards = [file for file in manifest["files"] if file["name"].endswith(".tar")]
        assert {file["split"] for file in shards} == {"train", "val"}
        for file in shards:
            assert len(members(tmp_path / "out" / file["name"])) == 2 * file["samples"]
        assert sum(file["samples"] for file in shards) == len(names)
        assert sorted(file["name"] for file in manifest["files"]) == sorted(
            path.relative_to(tmp_path / "out").as_posix() for path in tmp_path.glob("out/*/*")
        )

    def test_verify_reads_it_and_finds_a_flipped_byte(self, tmp_path: Path) -> None:
        pack(write_images(tmp_path / "in", "train/a/x.jpg"), tmp_path / "out")
        assert verify_folder(tmp_path / "out")[0].problems == []
        shard = tmp_path / "out/train/train-000000.tar"
        shard.write_bytes(b"\x00" + shard.read_bytes()[1:])
        assert "train/train-000000.tar" in verify_folder(tmp_path / "out")[0].problems[0]

    def test_it_is_ascii_and_has_names_as_utf_8_has_them(self, tmp_path: Path) -> None:
        pack(write_images(tmp_path / "in", "train/é/x.jpg"), tmp_path / "out")
        text = (tmp_path / "out" / MANIFEST).read_text()
        assert text.isascii()
        assert json.loads(text)["classes"] == ["é"]


class TestWriting:
    @pytest.fixture
    def plan(self, tmp_path: Path) -> PackPlan:
        names = [f"train/{number % 2}/{number}.jpg" for number in range(20)]
        return plan_pack(write_images(tmp_path / "in", *names), tmp_path / "out", 5000)

    @pytest.mark.parametrize("content", [None, b"", b"shorter", b"much longer than before"])
    def test_an_image_that_changed_or_disappeared_after_the_plan(
        self, plan: PackPlan, tmp_path: Path, content: bytes | None
    ) -> None:
        image = tmp_path / "in" / plan.shards[-1].samples[-1].path
        image.unlink()
        if content is not None:
            image.write_bytes(content)
        with pytest.raises(KubetrainError) as failed:
            write_pack(plan)
        assert str(image) in str(failed.value)
        assert ("cannot read" if content is None else "changed while it was being packed") in str(failed.value)
        assert names_in(tmp_path) == ["in"]

    def test_an_interrupt_leaves_nothing(self, plan: PackPlan, tmp_path: Path) -> None:
        def interrupt(sample: Sample) -> None:
            assert (tmp_path / ".out.partial/data/train/train-000000.tar").exists()
            assert not (tmp_path / "out").exists()
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            write_pack(plan, interrupt)
        assert names_in(tmp_path) == ["in"]

    def test_leftovers_of_a_killed_pack_are_not_packed(self, plan: PackPlan, tmp_path: Path) -> None:
        write_images(tmp_path / ".out.partial", "lock", "data/train/train-000099.tar", "data/other/x.tar")
        write_pack(plan)
        assert names_in(tmp_path) == ["in", "out"]
        assert {path.relative_to(tmp_path / "out").as_posix() for path in tmp_path.glob("out/*/*.tar")} == {
            shard.name for shard in plan.shards
        }

    def test_a_second_pack_at_the_same_time_is_refused(self, plan: PackPlan, tmp_path: Path) -> None:
        def pack_too(sample: Sample) -> None:
            with pytest.raises(KubetrainError, match="out is being written by another kubetrain pack"):
                write_pack(plan)

        write_pack(plan, pack_too)
        assert verify_folder(tmp_path / "out")[0].problems == []

    def test_a_target_created_after_the_plan_is_not_overwritten(self, plan: PackPlan, tmp_path: Path) -> None:
        write_images(tmp_path / "out", "mine")
        with pytest.raises(KubetrainError, match=r"cannot write to .*out"):
            write_pack(plan)
        assert [path.name for path in tmp_path.glob("out/*")] == ["mine"]

    def test_memory_does_not_grow_with_images_or_shards(self, tmp_path: Path) -> None:
        folder = write_images(tmp_path / "in", *(f"train/a/{number}.jpg" for number in range(4)))
        for image in folder.glob("train/a/*"):
            os.truncate(image, 40 * MEGABYTE)
        plan = plan_pack(folder, tmp_path / "out", 80 * MEGABYTE)
        tracemalloc.start()
        write_pack(plan)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 10 * MEGABYTE
