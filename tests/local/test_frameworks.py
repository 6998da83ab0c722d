"""The parts of the two trainers, in this process."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.model_names import TORCHVISION
from kubetrain_trainer.process_role import ProcessRole


class TestPyTorch:
    def test_the_table_of_names_is_the_librarys(self) -> None:
        import torchvision

        installed = set(torchvision.models.list_models(module=torchvision.models))
        assert set(TORCHVISION) == installed - {"googlenet", "inception_v3"}

    def test_images_are_read_fitted_and_normalized(self, tmp_path: Path) -> None:
        from PIL import Image

        from kubetrain_trainer.pytorch_ddp.data import image_data

        for split in ("train", "val"):
            path = tmp_path / split / "red" / "1.png"
            path.parent.mkdir(parents=True)
            Image.new("RGB", (20, 10), (255, 0, 0)).save(path)
        data = image_data(TrainConfig(image_size=8), tmp_path)
        samples = data.split("val")
        picture, label = samples[0]
        assert (data.classes, label, tuple(picture.shape)) == (("red",), 0, (3, 8, 8))
        assert picture[:, 4, 4].tolist() == pytest.approx([2.2489, -2.0357, -1.8044], abs=1e-3)
        assert samples.picture(0).startswith("data:image/png;base64,")

    def test_what_is_drawn_at_random_repeats_whatever_was_drawn_before(self) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.data import SeededSamples

        class Noisy:
            def __getitem__(self, index: int) -> torch.Tensor:
                return torch.rand(3)

        first = SeededSamples(Noisy(), seed=1, epoch=2)
        drawn = first[5]
        torch.rand(100)
        assert torch.equal(first[5], drawn)
        assert not torch.equal(first[6], drawn)
        assert not torch.equal(SeededSamples(Noisy(), seed=1, epoch=3)[5], drawn)

    def test_a_checkpoint_that_brings_code_is_refused(self, tmp_path: Path) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp import checkpoint

        class Evil:
            def __reduce__(self) -> tuple[object, tuple[str]]:
                return os.system, (f"touch {tmp_path / 'executed'}",)

        torch.save({"model": Evil()}, tmp_path / "state.pt")
        with pytest.raises(KubetrainError, match="was not written by this trainer"):
            checkpoint._load(tmp_path / "state.pt", torch.device("cpu"))
        assert not (tmp_path / "executed").exists()

    def test_a_staged_state_stays_what_it_was_in_memory_that_is_reused(self) -> None:
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

    def test_an_own_function_must_return_a_task(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        from kubetrain_trainer.pytorch_ddp.task import build_task

        (tmp_path / "not_a_task.py").write_text("def build(config, data_dir): return 3")
        monkeypatch.chdir(tmp_path)
        monkeypatch.syspath_prepend(str(tmp_path))
        with pytest.raises(InvalidSetting, match=r"'not_a_task:build' returned a int; it must return a Task of"):
            build_task(TrainConfig(model="not_a_task:build"), tmp_path)

    @pytest.mark.parametrize(
        ("threads", "local_processes", "workers"), [("1", 1, 0), ("4", 2, 3), ("64", 1, 8), (None, 10_000, 0)]
    )
    def test_loaders_take_the_processors_that_are_left(
        self, threads: str | None, local_processes: int, workers: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import torch

        from kubetrain_trainer.pytorch_ddp.data import loader_workers

        monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
        if threads:
            monkeypatch.setenv("OMP_NUM_THREADS", threads)
        role = ProcessRole(local_world_size=local_processes)
        gpu, cpu = torch.device("cuda"), torch.device("cpu")
        assert loader_workers(TrainConfig(), role, gpu) == workers
        assert loader_workers(TrainConfig(), role, cpu) == 0
        assert loader_workers(TrainConfig(loader_workers=5), role, cpu) == 5


TENSORFLOW_PARTS = """
import sys
import numpy as np
from pathlib import Path
from PIL import Image
from kubetrain_trainer.config import TrainConfig
from kubetrain_trainer.model_names import KERAS
from kubetrain_trainer.tensorflow_multiworker.data import image_data, load
from kubetrain_trainer.tensorflow_multiworker.model import build_model
import keras, inspect

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
assert (data.classes, int(label), tuple(picture.shape)) == (("red",), 0, (8, 8, 3))
np.testing.assert_allclose(picture[4, 4], [2.2489, -2.0357, -1.8044], atol=1e-3)
assert samples.picture(0).startswith("data:image/png;base64,")

noise = image_data(TrainConfig(data="synthetic", synthetic_samples=50), folder).split("train")
sizes = [len(targets) for _, targets in load(noise, [[1, 2, 3], [4, 5, 6], [7, 8]])]
assert sizes == [3, 3, 2], sizes
assert list(load(noise, [])) == []
np.testing.assert_array_equal(noise.load(3)[0], noise.load(3)[0])

from kubetrain_trainer.tensorflow_multiworker import checkpoint
from kubetrain_trainer.tensorflow_multiworker.staging import Staging

weights, staging = keras.Variable(np.ones(3), dtype="bfloat16"), Staging(keeps=True)
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

for name in ("keras:resnet18", "keras:resnet50", "digits_cnn"):
    assert build_model(name, 32, 7, {})(np.zeros((2, 32, 32, 3), "float32")).shape == (2, 7)
"""


def test_tensorflows_parts(tmp_path: Path) -> None:
    """In a process of its own: torch, imported after TensorFlow, crashes."""
    finished = subprocess.run(
        [sys.executable, "-c", TENSORFLOW_PARTS, tmp_path], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr


TWO_REPLICAS = """
import sys
import tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * int(sys.argv[2]))
devices = [f"CPU:{number}" for number in range(int(sys.argv[2]))]
from kubetrain_trainer.tensorflow_multiworker import train
from kubetrain_trainer.tensorflow_multiworker import group
group.build_strategy = lambda config, role: tf.distribute.MirroredStrategy(devices)
from kubetrain_trainer.entry_point import training_arguments
sys.argv = ["train", "--data-dir", ".", "--output-dir", sys.argv[1], "--data", "synthetic", "--max-steps", "4",
    "--synthetic-samples", "40", "--batch-size", sys.argv[3], "--warmup-epochs", "0", "--clip-norm", "0.5",
    "--model-args", '{"dropout": 0.0}', "--model", "plain:build"]
train.train(training_arguments(""))
"""
WITHOUT_BATCH_NORMALIZATION = """
import keras
from dataclasses import replace
from kubetrain_trainer.tensorflow_multiworker.task import build_task
def build(config, data_dir):
    task = build_task(replace(config, model="digits_cnn"), data_dir)
    layers = [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(16, "relu"), keras.layers.Dense(10)]
    return replace(task, model=keras.Sequential(layers))
"""


@pytest.mark.slow
def test_two_gpus_of_a_tensorflow_process_train_as_one_with_twice_the_batch(tmp_path: Path) -> None:
    """Two devices of one process, each with its batch, the gradient clipped over both: step for step the same."""
    from support.training import tensorflow_parameters

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
    one, two = (
        tensorflow_parameters(tmp_path / f"devices-{devices}" / "checkpoints" / "step-00000004") for devices in (1, 2)
    )
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_allclose(two[name], value, atol=1e-5, err_msg=name)
