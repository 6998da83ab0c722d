"""The parts of the two trainers, without a training around them."""

import multiprocessing
import os
import random
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from kubetrain_components.pack_dataset.pack import write_pack
from kubetrain_components.pack_dataset.plan import plan_pack
from kubetrain_trainer.data.sample_order import keys_of
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.settings.model_names import TORCHVISION

SMOOTHED = (0.23954, 0.63954)
"""The loss of the scores 2, 0 and 0 if the first class is right: without smoothing, and with label_smoothing=0.3."""

DAMAGED = r"b-bad\.png in damaged/damaged-\d+\.tar in the dataset is not an image that can be read: "


def write_folder_and_shards(folder: Path) -> None:
    """Write twenty images in two classes as image_folder/ and tar_shards/; the split damaged/ has an invalid one."""
    from PIL import Image

    for number in range(20):
        path = folder / "image_folder" / "train" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (10 + number, 10), (10 * number, 255 - number, number)).save(path)
        if number < 4:
            other = folder / "image_folder" / "damaged" / path.parent.name / path.name
            other.parent.mkdir(parents=True, exist_ok=True)
            other.write_bytes(path.read_bytes())
    (other.parent / "bad.png").write_bytes(b"not an image")
    write_pack(plan_pack(folder / "image_folder", folder / "tar_shards", 8192))


def write_images_of_every_kind(folder: Path) -> None:
    """Write PNG images of every depth and color type, and BMP images."""
    from PIL import Image

    folder.mkdir(parents=True)
    gray, gray_alpha, color, palette, color_alpha = 0, 4, 2, 3, 6
    channels = {gray: 1, gray_alpha: 2, color: 3, palette: 1, color_alpha: 4}
    for kind, depths in (
        *((gray, (1, 2, 4, 8, 16)), (palette, (1, 2, 4, 8))),
        *((kind, (8, 16)) for kind in (gray_alpha, color, color_alpha)),
    ):
        for depth in depths:
            content = png(size=16, depth=depth, color_type=kind, bits=16 * depth * channels[kind])
            (folder / f"{kind}-{depth}.png").write_bytes(content)
    for mode in ("L", "RGB"):
        noise = np.random.default_rng(1).integers(0, 256, (16, 16, 3), np.uint8)
        Image.fromarray(noise).convert(mode).save(folder / f"{mode}.bmp")


def png(*, size: int, depth: int, color_type: int, bits: int) -> bytes:
    """Return an image of noise. Pillow cannot write all kinds."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    noise = np.random.default_rng(depth)
    rows = b"".join(b"\0" + noise.bytes(bits // 8) for _ in range(size))
    palette = chunk(b"PLTE", noise.bytes(3 * 2**depth)) if color_type == 3 else b""
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", size, size, depth, color_type, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + palette + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def own_build(parts: str) -> str:
    task = f"Task(model=None, loss=print, {parts})"
    return f"from kubetrain_trainer import Task\ndef build(config, data_dir): return {task}"


class TestPyTorch:
    def test_the_table_of_names_matches_the_library(self) -> None:
        import torchvision

        installed = set(torchvision.models.list_models(module=torchvision.models))
        assert set(TORCHVISION) == installed - {"googlenet", "inception_v3"}

    def test_images_are_read_fitted_and_normalized(self, tmp_path: Path) -> None:
        import torch
        from PIL import Image

        from kubetrain_trainer.pytorch_ddp.loading import Loader
        from kubetrain_trainer.pytorch_ddp.task import image_data

        for split in ("train", "val"):
            path = tmp_path / split / "red" / "1.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (20, 10), (255, 0, 0)).save(path)
        data = image_data(TrainConfig(image_size=8), tmp_path)
        samples = data.split("val")
        assert samples[0][0].dtype == torch.uint8
        ((pictures, labels, _),) = Loader(samples, TrainConfig(), ProcessRole(), torch.device("cpu")).load([[(0, 0)]])
        assert (data.classes, labels.tolist(), tuple(pictures.shape)) == (("red",), [0], (1, 3, 8, 8))
        assert pictures[0, :, 4, 4].tolist() == pytest.approx([2.2489, -2.0357, -1.8044], abs=1e-3)
        assert samples.picture(0).startswith("data:image/png;base64,")

    def test_16_bit_gray_is_scaled(self) -> None:
        from PIL import Image

        from kubetrain_trainer.pytorch_ddp.images.decoded_images import eight_bits

        levels = np.array([[0, 255, 256, 1000, 65535]])
        for kind in ("<u2", ">u2"):
            image = Image.frombytes("I;16" if kind == "<u2" else "I;16B", (5, 1), levels.astype(kind).tobytes())
            assert np.array(eight_bits(image).convert("RGB"))[0].tolist() == [[level >> 8] * 3 for level in levels[0]]

    def test_shards_have_the_images_of_the_folder_and_a_damaged_one_is_named(self, tmp_path: Path) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.loading import Loader
        from kubetrain_trainer.pytorch_ddp.task import image_data

        write_folder_and_shards(tmp_path)
        role, device = ProcessRole(), torch.device("cpu")
        loaded = {}
        for data in ("image_folder", "tar_shards"):
            config = TrainConfig(data=data, image_size=8)
            samples = image_data(config, tmp_path / data).split("train")
            (batch,) = Loader(samples, config, role, device).load([keys_of(range(len(samples)))])
            loaded[data] = sorted(zip(batch[0].tolist(), batch[1].tolist(), strict=True))
        assert len(loaded["tar_shards"]) == 20
        assert loaded["tar_shards"] == loaded["image_folder"]
        assert samples.picture(0).startswith("data:image/png;base64,")

        damaged = image_data(config, tmp_path / "tar_shards").split("damaged")
        with pytest.raises(KubetrainError, match=DAMAGED):
            list(
                Loader(damaged, replace(config, loader_workers=1), role, device).load(map(keys_of, ([0, 1], [2, 3, 4])))
            )
        for process in multiprocessing.active_children():
            process.kill()  # like a failing training: torch would wait five seconds for them

    def test_random_augmentation_repeats_regardless_of_what_was_drawn_before(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.loading import SeededSamples

        class Noisy:
            def __getitem__(self, index: int) -> tuple[float, float, float]:
                return torch.rand(1).item(), np.random.rand(), random.random()

        samples = SeededSamples(Noisy(), seed=1)
        drawn = samples[2, 5]
        random.random(), np.random.rand(), torch.rand(100)
        assert samples[2, 5] == drawn
        for other in (samples[2, 6], samples[3, 5]):
            assert not {*other} & {*drawn}

    def test_each_batch_of_a_stream_draws_its_own_random_numbers_in_each_process(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.streams import StreamLoader

        class Noise:
            def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
                while True:
                    yield torch.rand(1), 0

        def drawn(rank: int) -> list[float]:
            role, config = ProcessRole(rank=rank, world_size=2), TrainConfig(batch_size=2)
            batches = StreamLoader(Noise(), config, role, torch.device("cpu")).load([[]] * 3)
            return [number for batch in batches for number in batch.inputs.flatten().tolist()]

        assert drawn(0) == drawn(0)
        assert len({*drawn(0), *drawn(1)}) == 12

    def test_a_stream_that_resumed_at_its_end_is_read_from_its_beginning(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.streams import StreamLoader

        passes = iter([[], [(torch.ones(1), 0)] * 2])

        class Rest:
            def __iter__(self) -> Iterator[tuple[torch.Tensor, int]]:
                return iter(next(passes))

        loader = StreamLoader(Rest(), TrainConfig(batch_size=2), ProcessRole(), torch.device("cpu"))
        [batch] = loader.load([[]])
        assert batch.targets.tolist() == [0, 0]

    def test_labels_are_smoothed_in_training_alone(self, tmp_path: Path) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.task import build_task

        scores, label = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([0])
        task = build_task(TrainConfig(data="synthetic", label_smoothing=0.3), tmp_path)
        assert task.training_loss is not None
        assert (float(task.loss(scores, label)), float(task.training_loss(scores, label))) == pytest.approx(
            SMOOTHED, abs=1e-5
        )
        assert build_task(TrainConfig(data="synthetic"), tmp_path).training_loss is None

    def test_a_batch_of_any_structure_is_split(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.structures import split

        numbers = torch.arange(5)
        first, last = split(
            [{"number": numbers, "name": ["a", "b", "c", "d", "e"]}, (numbers, numbers + 1)], 2, samples=5
        )
        assert first[0]["name"] == ["a", "b"]
        assert last[0]["name"] == ["c", "d", "e"]
        assert (first[0]["number"].tolist(), last[0]["number"].tolist()) == ([0, 1], [2, 3, 4])
        assert [each.tolist() for each in last[1]] == [[2, 3, 4], [3, 4, 5]]

    def test_batches_are_taken_as_they_are_needed(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.loading import Loader

        samples = [(torch.tensor(number), number) for number in range(8)]
        for workers in (0, 2):
            loader = Loader(samples, TrainConfig(loader_workers=workers), ProcessRole(), torch.device("cpu"))
            endless = loader.load(keys_of([number % 7, number % 7 + 1]) for number in count())
            assert [batch.targets.tolist() for batch in islice(endless, 8)] == [[n % 7, n % 7 + 1] for n in range(8)]

    def test_gradients_of_micro_batches_are_reduced_once(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        import torch
        from torch import distributed as dist
        from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

        from kubetrain_trainer.data.sampling import Batch
        from kubetrain_trainer.processes.entry_point import Arguments
        from kubetrain_trainer.processes.watchdog import Watchdog
        from kubetrain_trainer.pytorch_ddp import training as training_module
        from kubetrain_trainer.pytorch_ddp.group import Group
        from kubetrain_trainer.pytorch_ddp.step import take_step
        from kubetrain_trainer.pytorch_ddp.training import build_training

        exchanges = []

        def exchange(state: None, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
            exchanges.append(bucket.index())
            return allreduce_hook(None, bucket)  # type: ignore[arg-type]

        config = TrainConfig(data="synthetic", batch_size=6, gradient_accumulation=3)
        arguments = Arguments(config=config, data_dir=tmp_path, output=TrainingOutput(tmp_path), dataset_digest="")
        dist.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
        monkeypatch.setattr(training_module, "check_same_data", lambda *_: None)  # the other process does not exist
        try:
            role = ProcessRole(world_size=2)
            training = build_training(arguments, Group(role, torch.device("cpu")), Watchdog(config, role))
            training.model.register_comm_hook(None, exchange)  # type: ignore[operator]
            images, labels = torch.randn(6, 3, 8, 8), torch.arange(6)
            take_step(training, images, labels, Batch(epoch=0, indices=[*range(6)], global_size=12), 1, factor=1)
        finally:
            dist.destroy_process_group()
        assert exchanges == [0]

    @pytest.mark.parametrize("precision", ["fp32", "fp16"])
    def test_gradients_are_clipped_by_their_norm_without_the_scale_of_the_loss(self, precision: str) -> None:
        import torch

        from kubetrain_trainer.loop.recent_steps import LossScale
        from kubetrain_trainer.pytorch_ddp.step import clip_gradients

        config, model = TrainConfig(precision=precision, clip_norm=1.0), torch.nn.Linear(2, 1, bias=False)
        scale, group = LossScale(config), SimpleNamespace(device=torch.device("cpu"))
        recent = SimpleNamespace(loss_scale=scale)
        training: Any = SimpleNamespace(model=model, config=config, recent=recent, group=group)
        for gradient, clipped in (([3.0, 4.0], [0.6, 0.8]), ([0.3, 0.4], [0.3, 0.4])):
            model.weight.grad = torch.tensor([gradient]) * scale.factor
            assert clip_gradients(training).item() == pytest.approx(torch.tensor(gradient).norm().item())
            assert model.weight.grad.flatten().tolist() == pytest.approx(clipped, rel=1e-4)

    @pytest.mark.parametrize(
        "settings", [{"precision": "fp16"}, {"global_batch_size": 64}, {"gradient_accumulation": 2}]
    )
    def test_a_step_of_a_tasks_own_refuses_what_it_would_ignore(self, settings: dict[str, Any]) -> None:
        from kubetrain_trainer.pytorch_ddp.training import check_task

        task: Any = SimpleNamespace(metrics={}, step=lambda step: None)
        check_task(task, TrainConfig())
        with pytest.raises(InvalidSetting, match=f"{next(iter(settings))} .* because the task's own step"):
            check_task(task, TrainConfig(**settings))

    @pytest.mark.parametrize("part", ["optimizer", "parameter_groups"])
    def test_rates_of_layers_are_refused_if_the_task_chooses_them(self, part: str) -> None:
        from kubetrain_trainer.pytorch_ddp.training import check_task

        parts = {"optimizer": None, "parameter_groups": None, part: lambda model: []}
        task: Any = SimpleNamespace(metrics={}, step=None, **parts)
        check_task(task, TrainConfig())
        with pytest.raises(InvalidSetting, match=f"layer_rate must be 1, because the task's own {part} chooses"):
            check_task(task, TrainConfig(layer_rate=0.8))

    def test_outputs_of_reduced_precision_are_in_fp32(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.precision import forward

        model, inputs = torch.nn.Linear(1, 1, bias=False), torch.tensor([[1.001]])
        torch.nn.init.ones_(model.weight)
        outputs = {
            precision: forward(model, inputs, TrainConfig(precision=precision), torch.device("cpu"))
            for precision in ("fp32", "bf16")
        }
        assert {precision: (each.dtype, each.item()) for precision, each in outputs.items()} == {
            "fp32": (torch.float32, inputs.item()),
            "bf16": (torch.float32, 1.0),
        }

    @pytest.mark.parametrize(("precision", "expected"), [("auto", "tf32"), ("tf32", "tf32"), ("fp32", "ieee")])
    def test_gpus_compute_in_fp32_as_the_setting_says(self, precision: str, expected: str) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.precision import use_tf32

        backends = [torch.backends.cuda.matmul, torch.backends.cudnn.conv, torch.backends.cudnn.rnn]
        use_tf32(TrainConfig(precision=precision))
        try:
            assert [each.fp32_precision for each in backends] == [expected] * 3
        finally:
            use_tf32(TrainConfig())

    def test_a_checkpoint_with_code_is_refused(self, tmp_path: Path) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp import state_files

        class Evil:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return os.system, (f"touch {tmp_path / 'executed'}",)

        torch.save({"model": Evil()}, tmp_path / "state.pt")
        with pytest.raises(KubetrainError, match="was not written by this trainer"):
            state_files.load_state(tmp_path / "state.pt", torch.device("cpu"))
        assert not (tmp_path / "executed").exists()

    def test_a_staged_state_does_not_change_and_its_memory_is_reused(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.staging import Staging

        weights, staging = torch.ones(3), Staging()
        state = {"model": {"weights": weights}, "slots": [{"momentum": weights * 2, "rate": 0.1}]}
        staged = staging.copy(state)
        weights += 1
        assert staged["model"]["weights"].tolist() == [1, 1, 1]
        assert (staged["slots"][0]["momentum"].tolist(), staged["slots"][0]["rate"]) == ([2, 2, 2], 0.1)
        again = staging.copy(state)
        assert again["model"]["weights"].tolist() == [2, 2, 2]
        assert again["model"]["weights"].data_ptr() == staged["model"]["weights"].data_ptr()

    def test_a_state_is_copied_only_when_the_one_before_is_written(self, tmp_path: Path) -> None:
        import torch

        from kubetrain_trainer.output.checkpoint_layout import TrainingProgress, complete_checkpoints
        from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
        from kubetrain_trainer.pytorch_ddp.checkpoint import save
        from kubetrain_trainer.pytorch_ddp.staging import Staging
        from kubetrain_trainer.pytorch_ddp.state_files import joined, read_files

        class SlowStaging(Staging):
            def wait(self) -> None:
                time.sleep(0.2)

        output, weights, staging = TrainingOutput(tmp_path), torch.zeros(3), SlowStaging()
        output.begin("pytorch", TrainConfig(), "")
        with CheckpointWriter(output, TrainConfig()) as writer:
            for step in (1, 2):
                weights += 1
                state = {"model": {"weights": weights}}
                save(writer, staging, TrainingProgress(step=step), {"metrics": {}}, state, (), joint=None)
        saved = [joined(read_files(each.path))["model"]["weights"] for each in complete_checkpoints(output.checkpoints)]
        assert [each.tolist() for each in saved] == [[1, 1, 1], [2, 2, 2]]

    def test_averages_begin_with_the_weights_and_count_as_they_do(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.optimizer import Averages

        model, copied = torch.nn.BatchNorm1d(2), torch.nn.BatchNorm1d(2)
        torch.nn.init.constant_(model.weight, 3)
        averages = Averages(TrainConfig(ema_decay=0.5), model, copied)
        assert copied.weight.tolist() == [3, 3]
        model(torch.randn(4, 2))
        torch.nn.init.constant_(model.weight, 5)
        averages.update(step=100)
        assert copied.weight.tolist() == [4, 4]
        assert copied.running_mean.tolist() == pytest.approx((model.running_mean / 2).tolist())
        assert copied.num_batches_tracked == model.num_batches_tracked == 1

    def test_there_is_room_for_copies_of_all_processes_of_the_pod_or_for_none(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp import staging

        state = {"weights": torch.ones(1_000_000)}
        monkeypatch.setattr(staging, "free_memory", lambda: 8_000_000)
        alone, pair = staging.Staging(), staging.Staging(in_pod=2)
        assert alone.has_room(state)
        assert not pair.has_room(state)
        assert not pair.has_room(state)
        assert caplog.text.count("a copy of the state takes 0.0 GB and 0.0 GB are free") == 1
        alone.copy(state)
        monkeypatch.setattr(staging, "free_memory", lambda: 0)
        assert alone.has_room(state), "the memory of the copy is there already"

    def test_a_custom_function_must_return_a_task(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from kubetrain_trainer.pytorch_ddp.task import build_task

        (tmp_path / "not_a_task.py").write_text("def build(config, data_dir): return 3")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(InvalidSetting, match=r"returned a int; it must return a kubetrain_trainer\.Task"):
            build_task(TrainConfig(model="not_a_task:build"), tmp_path)

    @pytest.mark.parametrize(
        ("build", "refused"),
        [
            (
                "def build(config): ...",
                r"must be a function build\(config, data_dir\) that returns a Task: too many pos",
            ),
            ("build = 3", r"must be a function build\(config, data_dir\) that returns a Task: 3 is not a callable"),
            (own_build("data=[1]"), "data of the Task is a list: give a function, such as lambda split: …"),
            (own_build("data='train'"), "data of the Task is a str: give a function"),
            (own_build("data=list, sampler=range(8)"), "sampler of the Task is a range: give a function$"),
            (own_build("data=list, classes=('cat', 'dog', 'cat')"), "classes of the Task has 'cat' more than once"),
        ],
    )
    def test_what_is_no_function_is_refused(
        self, build: str, refused: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        from kubetrain_trainer.pytorch_ddp.task import build_task

        (tmp_path / "no_function.py").write_text(build)
        monkeypatch.syspath_prepend(str(tmp_path))
        monkeypatch.delitem(sys.modules, "no_function", raising=False)
        with pytest.raises(InvalidSetting, match=refused):
            build_task(TrainConfig(model="no_function:build"), tmp_path)

    def test_samples_have_indices_or_are_read_in_sequence(self) -> None:
        from kubetrain_trainer.pytorch_ddp.streams import is_stream

        class WithoutLength:
            def __getitem__(self, index: int) -> int:
                return index

        assert [is_stream(samples) for samples in ([1, 2], {1, 2})] == [False, True]
        with pytest.raises(
            KubetrainError, match=r"data returned a WithoutLength: return an object with len\(\) and \["
        ):
            is_stream(WithoutLength())

    def test_many_loaders_prepare_no_more_batches_than_the_shared_memory_holds(self) -> None:
        from kubetrain_trainer.pytorch_ddp.loading import batches_ahead

        assert [batches_ahead(workers) for workers in (1, 4, 8, 9, 16, 32)] == [2, 2, 2, 1, 1, 1]

    @pytest.mark.parametrize(
        ("cpus", "local_processes", "workers"), [(1, 1, 0), (8, 2, 3), (64, 1, 16), (64, 8, 7), (4, 8, 0)]
    )
    def test_loaders_use_the_cpus_that_are_left(
        self, cpus: int, local_processes: int, workers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.loading import loader_workers

        monkeypatch.setattr("kubetrain_trainer.processes.resources.usable_cpus", lambda: cpus)
        monkeypatch.setenv("OMP_NUM_THREADS", "1")  # says how many threads compute, not how many CPUs there are
        role = ProcessRole(local_world_size=local_processes)
        gpu, cpu = torch.device("cuda"), torch.device("cpu")
        assert loader_workers(TrainConfig(), role, gpu) == workers
        assert loader_workers(TrainConfig(), role, cpu) == 0
        assert loader_workers(TrainConfig(loader_workers=5), role, cpu) == 5


TENSORFLOW_PARTS = """
import itertools
import os
import re
import sys
from array import array
from dataclasses import replace
import numpy as np
import tensorflow as tf
from pathlib import Path
from PIL import Image
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.processes.resources import threads_of
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.settings.model_names import KERAS
from kubetrain_trainer.data.shard_cache import TRAINING, ShardCache, StoredShard
from kubetrain_trainer.sidecar import StoreSilent
from kubetrain_trainer.data.shard_groups import CachedShards
from kubetrain_trainer.data.tar_shards import list_images
from kubetrain_trainer.tensorflow_multiworker.task import image_data
from kubetrain_trainer.tensorflow_multiworker.images.decoded_images import StoredImages, as_bytes
from kubetrain_trainer.data.sample_order import keys_of
from kubetrain_trainer.tensorflow_multiworker.loading import load, split as split_batch
from kubetrain_trainer.tensorflow_multiworker.model import build_model
from kubetrain_trainer.tensorflow_multiworker.task import build_task
import keras, inspect

from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.tensorflow_multiworker.group import prepare_devices

prepare_devices(TrainConfig(precision="fp32"), ProcessRole())
assert not tf.config.experimental.tensor_float_32_execution_enabled()
assert tf.config.threading.get_intra_op_parallelism_threads() == threads_of(ProcessRole())

installed = {name.lower() for name in dir(keras.applications) if inspect.isfunction(getattr(keras.applications, name))}
of_raw_pixels = {f"efficientnetb{number}" for number in range(8)}
assert set(KERAS) == installed - of_raw_pixels | {"resnet18"}, set(KERAS) ^ installed

folder = Path(sys.argv[1])
for split in ("train", "val"):
    path = folder / split / "red" / "1.png"
    path.parent.mkdir(parents=True)
    Image.new("RGB", (20, 10), (255, 0, 0)).save(path)
data = image_data(TrainConfig(image_size=8), folder)
samples = data.split("val")
picture, label = samples.load(0)
assert (data.classes, int(label), tuple(picture.shape), picture.dtype) == (("red",), 0, (8, 8, 3), tf.uint8)
np.testing.assert_allclose(samples.prepare(picture[None])[0, 4, 4], [2.2489, -2.0357, -1.8044], atol=1e-3)
assert samples.picture(0).startswith("data:image/png;base64,")

loaded = {}
for data in ("image_folder", "tar_shards"):
    stored = image_data(TrainConfig(data=data, image_size=8), folder / data)
    samples = stored.split("train")
    pictures, labels = next(iter(load(samples, [keys_of(range(len(samples)))])))
    loaded[data] = sorted(zip(pictures.numpy().tolist(), labels.numpy().tolist()))
assert len(loaded["tar_shards"]) == 20
assert loaded["tar_shards"] == loaded["image_folder"]
assert samples.picture(0).startswith("data:image/png;base64,")
alone = tf.function(samples.load)(tf.constant(3))  # as a custom task may call it
np.testing.assert_allclose(alone[0], pictures[3], atol=1e-5)

def assert_rejected(samples, batches, message):
    try:
        list(load(samples, map(keys_of, batches)))
    except KubetrainError as error:
        assert re.search(message, str(error)), error
    else:
        raise AssertionError("a damaged image was loaded")

assert_rejected(stored.split("damaged"), [[0, 1], [2, 3, 4]], sys.argv[3])
for shard in (folder / "tar_shards" / "train").glob("*.tar"):
    os.truncate(shard, 600)
assert_rejected(samples, [[0], *([index] for index in range(1, 20))], "was truncated while in use")

class Broken:
    def __len__(self):
        return 3
    def load(self, index):
        is_first = tf.debugging.assert_less(index, tf.constant(1, tf.int64), "my record is broken")
        with tf.control_dependencies([is_first]):
            return tf.cast(index, tf.float32), tf.identity(index)

try:
    list(load(Broken(), [keys_of([0, 1])]))
except tf.errors.InvalidArgumentError as error:
    assert "my record is broken" in str(error), error
else:
    raise AssertionError("a broken record was loaded")

opened = []
class Unavailable(ShardCache):
    def open(self, shard):
        opened.append(shard)
        raise StoreSilent("the store does not answer")

shards = (StoredShard("a.tar", 1, "etag", "sha256"),)
cached = CachedShards(cache=Unavailable(folder, TRAINING), shards=shards, starts=array("q", [0, 20]))
images = replace(list_images(folder / "tar_shards", "train"), cached=cached)
assert_rejected(StoredImages(images, TrainConfig(data="tar_shards", image_size=8)), [[0]], "the store does not answer")
assert len(opened) == 1, "each further attempt would wait for minutes"

kinds = image_data(TrainConfig(), folder / "kinds").split("train")
whole = [kinds._decode(tf.constant(index), surplus=lambda _: 1.0).numpy() for index in range(len(kinds))]
np.savez(folder / "pixels.npz", *whole)
centers = image_data(TrainConfig(image_size=8, evaluation_crop=0.5), folder / "kinds").split("train")
np.testing.assert_array_equal(centers.load(0)[0], whole[0][4:12, 4:12])

from random import Random
from kubetrain_trainer.settings.augmentation import Recipe, draw
from kubetrain_trainer.tensorflow_multiworker.images.augmented_images import cropped_part
for seed in range(300):
    drawn = tf.constant(draw(Recipe(crop_area=0.08), Random(seed)).crop, tf.float32)
    top, left, height, width = cropped_part(tf.constant([3, 3]), drawn).numpy().tolist()
    assert 0 <= top < top + height <= 3, "a crop has a pixel"
    assert 0 <= left < left + width <= 3, "a crop has a pixel"

noise = image_data(TrainConfig(data="synthetic", synthetic={"samples": 50}), folder).split("train")
sizes = [len(targets) for _, targets in load(noise, map(keys_of, ([1, 2, 3], [4, 5, 6], [7, 8])))]
assert sizes == [3, 3, 2], sizes
assert list(load(noise, [])) == []
endless = load(noise, (keys_of([number, number + 1]) for number in itertools.cycle(range(10))))
labels = [targets.numpy().tolist() for _, targets in itertools.islice(endless, 200)]
assert labels[:10] == labels[10:20] == [[number, (number + 1) % 10] for number in range(10)], labels
np.testing.assert_array_equal(noise.load(3)[0], noise.load(3)[0])

parts = split_batch({"number": np.arange(5), "more": (np.arange(5) + 1,)}, 2)
assert [each["number"].tolist() for each in parts] == [[0, 1], [2, 3, 4]]
assert [each["more"][0].tolist() for each in parts] == [[1, 2], [3, 4, 5]]

smoothing = build_task(TrainConfig(data="synthetic", label_smoothing=0.3), folder)
scores, label = np.array([[2, 0, 0]], "float32"), np.array([0])
losses = float(smoothing.loss(scores, label)[0]), float(smoothing.training_loss(scores, label)[0])
np.testing.assert_allclose(losses, eval(sys.argv[2]), atol=1e-5)

from kubetrain_trainer.tensorflow_multiworker import checkpoint
from kubetrain_trainer.tensorflow_multiworker.checkpoint import Staging

weights, staging = keras.Variable(np.ones(3), dtype="bfloat16"), Staging(is_needed=True)
staged = staging.copy({"model/0": weights})
memory = staged["model/0"]
weights.assign([2, 2, 2])
assert memory.tolist() == [1, 1, 1]
np.savez(folder / "state.npz", **staged)
checkpoint._assign({"model/0": weights}, checkpoint._load(folder / "state.npz"))
assert weights.numpy().tolist() == [1, 1, 1]
weights.assign([3, 3, 3])
assert staging.copy({"model/0": weights})["model/0"] is memory
assert memory.tolist() == [3, 3, 3]

try:
    build_task(TrainConfig(model="unbuilt:build"), folder)
except InvalidSetting as error:
    assert "has no weights yet: begin it with keras.Input" in str(error)
else:
    raise AssertionError("a model without weights was accepted")

import keras
from kubetrain_trainer.callbacks.keras import SessionCallback
try:
    SessionCallback().resume(keras.Sequential([keras.layers.Dense(2)]))
except InvalidSetting as error:
    assert str(error).startswith("the model has no weights yet: begin it with keras.Input")
else:
    raise AssertionError("a model that cannot resume was trained")

for name in ("keras:resnet18", "keras:resnet50", "keras:mobilenetv3small", "digits_cnn"):
    model = build_model(name, 32, 7, {})
    scores = model(np.zeros((2, 32, 32, 3), "float32"))
    assert scores.shape == (2, 7)
    assert not np.allclose(tf.reduce_sum(scores, 1), 1), f"{name} returns probabilities, and the loss wants scores"
    changing = [each for each in model.layers if isinstance(each, (keras.layers.Rescaling, keras.layers.Normalization))]
    assert not changing, f"{name} would normalize what is normalized already"
    norms = [each for each in model.layers if isinstance(each, keras.layers.BatchNormalization)]
    if name in ("keras:resnet18", "digits_cnn"):
        assert {(each.momentum, each.epsilon) for each in norms} == {(0.9, 1e-5)}, "as in PyTorch"
small, whole = (build_model("keras:mobilenet", 32, 7, {"alpha": width}).count_params() for width in (0.25, 1.0))
assert small < whole / 10

[level] = as_bytes(tf.constant([3.7])).numpy()
assert level == 4
"""


@pytest.mark.slow
def test_tensorflows_parts(tmp_path: Path) -> None:
    """Run in a separate process: torch crashes if it is imported after TensorFlow."""
    write_folder_and_shards(tmp_path)
    write_images_of_every_kind(tmp_path / "kinds" / "train" / "all")
    (tmp_path / "unbuilt.py").write_text(WITHOUT_INPUT)
    program = [sys.executable, "-c", TENSORFLOW_PARTS, tmp_path, str(SMOOTHED), DAMAGED]
    finished = subprocess.run(program, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert_pytorch_sees_these_pixels(tmp_path / "kinds", tmp_path / "pixels.npz")


def assert_pytorch_sees_these_pixels(data_dir: Path, pixels: Path) -> None:
    from kubetrain_trainer.pytorch_ddp.task import image_data

    images = image_data(TrainConfig(), data_dir).split("train")
    with np.load(pixels) as arrays:
        expected = list(arrays.values())
    assert len(images) == len(expected) > 15
    for index, each in enumerate(expected):
        name = images._images.name(index)  # type: ignore[attr-defined]
        seen = np.array(images._decode(index, 224))  # type: ignore[attr-defined]
        np.testing.assert_array_equal(seen, each, err_msg=name)
        assert len(np.unique(each)) > 1, name


TWO_REPLICAS = """
import sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(sys.argv[2]))
devices = [f"CPU:{number}" for number in range(int(sys.argv[2]))]
from kubetrain_trainer.tensorflow_multiworker import train
from kubetrain_trainer.tensorflow_multiworker import group
group.build_strategy = lambda config, role: tf.distribute.MirroredStrategy(devices)
from kubetrain_trainer.processes.entry_point import training_arguments
sys.argv = ["train", "--data-dir", ".", "--output-dir", sys.argv[1], "--data", "synthetic", "--max-steps", "4",
    "--synthetic", '{"samples": 40}', "--batch-size", sys.argv[3], "--warmup-epochs", "0", "--checkpoint-every", "2",
    "--clip-norm", "0.5", "--precision", "fp32",
    "--model-args", '{"dropout": 0.0}', "--model", "plain:build"]
train.train(training_arguments(""))
"""
WITHOUT_INPUT = """
import keras
from kubetrain_trainer import KerasTask
def build(config, data_dir):
    return KerasTask(model=keras.Sequential([keras.layers.Dense(2)]), data=None, loss=None)
"""
WITHOUT_BATCH_NORMALIZATION = """
import keras
from dataclasses import replace
from kubetrain_trainer.tensorflow_multiworker.task import build_task
def build(config, data_dir):
    task = build_task(replace(config, model="digits_cnn"), data_dir)
    layers = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)]
    return replace(task, model=keras.Sequential(layers), metrics={**task.metrics, "samples": Samples()})
class Samples(keras.metrics.Sum):
    def update_state(self, targets, outputs, sample_weight=None):
        super().update_state(keras.ops.ones_like(targets))
"""


@pytest.mark.slow
def test_two_gpus_of_a_tensorflow_process_train_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    """Each device has its own batch, the gradient is clipped over both, and every step is the same."""
    from support.training import newest, tensorflow_parameters

    (tmp_path / "plain.py").write_text(WITHOUT_BATCH_NORMALIZATION)
    for devices, batch in ((1, 8), (2, 4)):
        finished = subprocess.run(
            [sys.executable, "-c", TWO_REPLICAS, f"devices-{devices}", str(devices), str(batch)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
        )
        assert finished.returncode == 0, finished.stderr
    saved = [newest(tmp_path / f"devices-{devices}") for devices in (1, 2)]
    one, two = tensorflow_parameters(*(checkpoint.path for checkpoint in saved))
    assert [checkpoint.manifest["metrics"]["samples"] for checkpoint in saved] == [40, 40], (
        "each is counted once for a validation"
    )
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-5, err_msg=name)
