"""TensorFlow in a pod of several GPUs: all of them validate and evaluate. Parts of the CPU stand in for them."""

import json
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.reporting.metrics_log import read_metrics
from kubetrain_trainer.settings.config import TrainConfig
from support.process_groups import start_python
from support.training import newest

pytestmark = pytest.mark.slow

SETTINGS = TrainConfig(
    model="support.free_keras_tasks:build",
    epochs=1,
    batch_size=4,
    metric="loss",
    metrics_port=0,
    precision="fp32",
    test_split="val",
)
DEVICES = """
import kubetrain_trainer.tensorflow_multiworker, tensorflow
[cpu] = tensorflow.config.list_physical_devices("CPU")
tensorflow.config.set_logical_device_configuration(cpu, [tensorflow.config.LogicalDeviceConfiguration()] * 3)
"""
PROGRAM = """
import runpy
runpy.run_module("kubetrain_trainer.tensorflow_multiworker.PROGRAM", run_name="__main__")
"""
PLACES = """
import json
from pathlib import Path
from tensorflow.python.eager import context
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.tensorflow_multiworker.evaluate import predictions
from kubetrain_trainer.tensorflow_multiworker.group import Group, build_strategy
from support.free_keras_tasks import build

config, role = TrainConfig(batch_size=4), ProcessRole()
group = Group(role, build_strategy(config, role))
with group.strategy.scope():
    task = build(config, Path())
context.enable_run_metadata()
context.context().enable_graph_collection()
for batches in predictions(task, task.data("val"), range(30), config, group):
    functions = context.export_run_metadata().function_graphs
    nodes = [node for each in functions for graph in each.partition_graphs for node in graph.node]
    devices = sorted(node.device[-5:] for node in nodes if "MatMul" in node.op)
    print(json.dumps([devices, [(len(each.outputs), each.samples) for each in batches]]))
"""
"""Prints where a step of an evaluation multiplies matrices, and the batches that it yields."""

DROPOUT = """
import keras, tensorflow as tf
from kubetrain_trainer import KerasTask

class Samples:
    def __len__(self):
        return 12
    def load(self, index):
        return tf.ones(64), index

def record(outputs):
    if not outputs.all():  # else it is a validation, which drops nothing
        with open("kept", "a") as file:
            print(*outputs.nonzero()[1], sep=",", file=file)

def loss(outputs, targets):
    with tf.control_dependencies([tf.numpy_function(record, [outputs], [])]):
        return tf.reduce_mean(outputs**2, axis=1)

def build(config, data_dir):
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(64), keras.layers.Dropout(0.5)])
    return KerasTask(model=model, data=lambda split: Samples(), loss=loss)
"""
"""A task that records which units each replica keeps in a step."""


def start(program: str, folder: Path, *flags: str) -> "subprocess.Popen[str]":
    return start_python("-c", program, *flags, cwd=folder)


def end(process: "subprocess.Popen[str]") -> str:
    log = process.communicate(timeout=150)[0]
    assert process.returncode == 0, log
    return log


def run(program: str, folder: Path, *flags: str, on: str) -> None:
    places = ["--data-dir", ".", "--output-dir", "output"]
    end(start(on + PROGRAM.replace("PROGRAM", program), folder, *places, *flags))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices")
    run("train", folder, *SETTINGS.to_flags(), on=DEVICES)
    return folder


def test_each_device_evaluates_a_batch_at_a_time(tmp_path: Path) -> None:
    log = end(start(DEVICES + PLACES, tmp_path))
    steps = [json.loads(line) for line in log.splitlines() if line.startswith("[[")]
    devices = ["CPU:0", "CPU:1", "CPU:2"]
    assert steps == [[devices, [[4, 4]] * 3], [devices, [[4, 4]] * 3], [devices, [[4, 4], [2, 2]]]]


def test_figures_of_several_devices_are_those_of_one(folder: Path) -> None:
    output = TrainingOutput(folder / "output")
    run("evaluate", folder, on="")
    one = output.read_evaluation()
    run("evaluate", folder, on=DEVICES)
    assert output.read_evaluation() == one
    assert one["samples"] == 33
    assert set(one["metrics"]) == {"loss", "f1", "auc", "perplexity", "found", "accuracy"}
    assert newest(output.path).manifest["metrics"] == pytest.approx(one["metrics"], rel=1e-6)


@pytest.mark.thorough
def test_each_device_normalizes_its_images(tmp_path: Path) -> None:
    for index, split in enumerate(["train", "val"] * 7):
        path = tmp_path / split / "red" / f"{index}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), (255, 0, 0)).save(path)
    own = replace(SETTINGS, model="support.mean_levels:build", image_size=8, batch_size=2, learning_rate=1e-9)
    run("train", tmp_path, *own.to_flags(), on=DEVICES)
    run("evaluate", tmp_path, on=DEVICES)
    output = TrainingOutput(tmp_path / "output")
    trained, validated = read_metrics(output.metrics)
    normalized = pytest.approx(2.2489 - 2.0357 - 1.8044, abs=1e-3)
    assert (trained["loss"], validated["validation_level"]) == (normalized, normalized)
    assert output.read_evaluation()["metrics"]["level"] == normalized


@pytest.mark.thorough
def test_each_device_drops_other_units(tmp_path: Path) -> None:
    (tmp_path / "dropout.py").write_text(DROPOUT)
    run("train", tmp_path, *replace(SETTINGS, model="dropout:build").to_flags(), on=DEVICES)
    kept = (tmp_path / "kept").read_text().split()
    assert len(kept) == len(set(kept)) == 3
