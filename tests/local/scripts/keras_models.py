"""Keras models of many kinds: regularizers, nested layers, weights of their own, targets as Keras users write them."""

import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from kubetrain_trainer.data.sampling import plan_samples
from kubetrain_trainer.errors import InvalidSetting, KubetrainError
from kubetrain_trainer.loop.recent_steps import LossScale
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.checkpoint_writer import CheckpointWriter
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.processes.process_role import ProcessRole
from kubetrain_trainer.processes.watchdog import Watchdog
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker import checkpoint, evaluate
from kubetrain_trainer.tensorflow_multiworker import precision as precisions
from kubetrain_trainer.tensorflow_multiworker.checkpoint import Staging
from kubetrain_trainer.tensorflow_multiworker.group import Group, build_strategy
from kubetrain_trainer.tensorflow_multiworker.initial_weights import load_initial_weights
from kubetrain_trainer.tensorflow_multiworker.layers import factors_of, freeze
from kubetrain_trainer.tensorflow_multiworker.loaded_model import build_network
from kubetrain_trainer.tensorflow_multiworker.measures import Predicted, Tally
from kubetrain_trainer.tensorflow_multiworker.model import build_model
from kubetrain_trainer.tensorflow_multiworker.optimizer import Averages, build_optimizer
from kubetrain_trainer.tensorflow_multiworker.precision import forward
from kubetrain_trainer.tensorflow_multiworker.step import accumulate_gradients, clip_and_decay, step_function
from kubetrain_trainer.tensorflow_multiworker.task import KerasTask, accuracy
from kubetrain_trainer.tensorflow_multiworker.train import local_batches
from kubetrain_trainer.tensorflow_multiworker.training import Training, build_training


def mlp(*widths: int, **options: Any) -> keras.Model:
    return keras.Sequential(
        [keras.Input((4,)), *(keras.layers.Dense(width, **options) for width in widths), keras.layers.Dense(3)]
    )


def transformer() -> keras.Model:
    hidden = entry = keras.Input((3, 8))
    for number in range(3):
        attention = keras.layers.MultiHeadAttention(2, 4, name=f"block{number}_attention")
        hidden = keras.layers.Dense(8, name=f"block{number}_dense")(hidden + attention(hidden, hidden))
    return keras.Model(entry, keras.layers.Dense(2, name="head")(hidden))


class Scaled(keras.Model):  # type: ignore[misc]
    """A model with a weight that belongs to none of its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(2)
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs: Any) -> Any:
        return self.dense(inputs) * self.scale


def test_layers_of_a_transformer_learn_at_the_rates_of_their_blocks() -> None:
    model = transformer()
    factors = dict(
        zip((each.path for each in model.trainable_variables), factors_of(model, layer_rate=0.5), strict=True)
    )
    for number, rate in enumerate((0.125, 0.25, 0.5)):
        block = {factor for path, factor in factors.items() if path.startswith(f"block{number}_")}
        assert block == {rate}
    assert factors["head/kernel"] == 1.0


def test_a_weight_of_the_model_itself_has_a_rate() -> None:
    model = Scaled()
    model(tf.ones((1, 4)))
    assert len(factors_of(model, layer_rate=0.5)) == 3


@pytest.mark.parametrize(("replicas", "parts", "precision"), [(1, 1, "fp32"), (2, 3, "fp32"), (2, 3, "fp16")])
def test_regularizers_count_once_for_each_step(replicas: int, parts: int, precision: str) -> None:
    model = mlp(5, kernel_regularizer=keras.regularizers.L2(0.1), bias_regularizer=keras.regularizers.L1(0.2))
    inputs, targets = tf.random.normal((12, 4), seed=1), tf.zeros((12, 3))

    def loss(outputs: Any, wanted: Any) -> Any:
        return tf.reduce_mean(tf.square(outputs - wanted), axis=1)

    with tf.GradientTape() as tape:
        expected_loss = tf.reduce_mean(loss(model(inputs), targets)) + tf.add_n(model.losses)
    expected = tape.gradient(expected_loss, model.trainable_variables)
    scale = LossScale(TrainConfig(precision=precision))
    training: Any = SimpleNamespace(
        task=SimpleNamespace(model=model, loss=loss, training_loss=None),
        samples=None,
        group=SimpleNamespace(replicas=replicas),
        recent=SimpleNamespace(loss_scale=scale),
    )
    shares = [
        accumulate_gradients(training, *share, tf.constant(12.0), tf.constant(scale.factor), parts)
        for share in zip(tf.split(inputs, replicas), tf.split(targets, replicas), strict=True)
    ]
    assert float(sum(each for each, _ in shares)) == pytest.approx(float(expected_loss), rel=1e-5)
    for ours, theirs in zip(zip(*(each for _, each in shares), strict=True), expected, strict=True):
        np.testing.assert_allclose(sum(ours), theirs, atol=1e-6)


def test_gradients_are_clipped_by_the_norm_of_all_of_them_and_then_decayed() -> None:
    config = TrainConfig(optimizer="sgd", clip_norm=1.0, weight_decay=0.5)
    training: Any = SimpleNamespace(config=config, task=SimpleNamespace(optimizer=None))
    variables = [keras.Variable([2.0]), keras.Variable([2.0])]
    norm, gradients = clip_and_decay(training, [tf.constant([3.0]), tf.constant([4.0])], variables)
    assert float(norm) == pytest.approx(5.0)
    assert [float(each[0]) for each in gradients] == pytest.approx([0.6 + 1.0, 0.8 + 1.0])


def training_of(folder: Path, precision: str = "fp32", **settings: Any) -> Training:
    config, role = TrainConfig(data="synthetic", precision=precision, **settings), ProcessRole()
    arguments = Arguments(config=config, data_dir=folder, output=TrainingOutput(folder), dataset_digest="")
    return build_training(arguments, Group(role, build_strategy(config, role)), Watchdog(config, role))


def test_a_skipped_step_leaves_the_model_and_its_statistics_as_they_were(tmp_path: Path) -> None:
    training = training_of(tmp_path, on_nan="skip")
    take_step, labels = step_function(training), tf.zeros(4, tf.int32)
    variables, before = training.task.model.weights, training.task.model.get_weights()
    assert not take_step(tf.fill((4, 8, 8, 3), float("inf")), labels, 4, 1, 0.1, 1)
    assert all(np.array_equal(one, other) for one, other in zip(variables, before, strict=True))
    assert take_step(tf.random.normal((4, 8, 8, 3)), labels, 4, 2, 0.1, 1)
    assert not any(np.array_equal(one, other) for one, other in zip(variables, before, strict=True))


def with_loss_by(function: Any, training: Training) -> Training:
    """Return the training with a loss that TensorFlow computes by a function of Python."""

    def loss(outputs: Any, targets: Any) -> Any:
        return tf.ensure_shape(function(lambda scores: scores[:, 0], [outputs], tf.float32), outputs.shape[:1])

    return replace(training, task=replace(training.task, loss=loss))


def test_gradients_are_compiled_if_the_settings_say_so(tmp_path: Path) -> None:
    """Only what is compiled may not call Python."""
    trainings = [training_of(tmp_path, compile=compiled) for compiled in ("none", "default")]
    steps = (step_function(with_loss_by(tf.py_function, each)) for each in trainings)
    batch = (tf.ones((4, 8, 8, 3)), tf.zeros(4, tf.int32), 4, 1, 0.1, 1)
    assert next(steps)(*batch)
    with pytest.raises(tf.errors.InvalidArgumentError, match="unsupported operations when trying to compile"):
        next(steps)(*batch)


def test_a_loss_without_gradients_is_named(tmp_path: Path) -> None:
    take_step = step_function(with_loss_by(tf.numpy_function, training_of(tmp_path)))
    with pytest.raises(KubetrainError, match="the loss does not depend on the model's weights: compute it from"):
        take_step(tf.ones((4, 8, 8, 3)), tf.zeros(4, tf.int32), 4, 1, 0.1, 1)


def test_the_seed_decides_the_first_weights(tmp_path: Path) -> None:
    first, same, other = (training_of(tmp_path, seed=seed).task.model.get_weights()[0] for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, same)
    assert not np.allclose(first, other)


class Counting(keras.layers.Layer):  # type: ignore[misc]
    def build(self, shape: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", dtype="int64", trainable=False)
        self.scale = self.add_weight(shape=(), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.scale


def test_counters_are_not_averaged() -> None:
    model, averaged = (keras.Sequential([keras.Input((2,)), Counting()]) for _ in range(2))
    averages = Averages(TrainConfig(ema_decay=0.5), model, averaged, tf.distribute.get_strategy())
    model.layers[0].calls.assign(7)
    model.layers[0].scale.assign(3.0)
    averages.update(step=1)
    assert int(averaged.layers[0].calls) == 7
    assert 1 < float(averaged.layers[0].scale) < 3


def test_replicas_of_several_processes_share_each_sample_once() -> None:
    config = TrainConfig(batch_size=2, epochs=1)
    plan, first = plan_samples(16, config, 4, None), TrainingProgress()
    groups: Any = [SimpleNamespace(role=ProcessRole(rank=rank, world_size=2), local_replicas=2) for rank in range(2)]
    steps = [step for group in groups for step in local_batches(plan, config, first, group)]
    assert [len(step) for step in steps] == [2] * 4
    assert sorted(chain.from_iterable(batch.indices for step in steps for batch in step)) == [*range(16)]


def measured_task(**parts: Any) -> KerasTask:
    return KerasTask(model=mlp(), data=lambda split: None, loss=lambda outputs, targets: outputs[:, 0], **parts)


def test_a_validation_measures_the_loss_and_how_far_it_is_certain() -> None:
    task = measured_task(training_loss=lambda outputs, targets: 0 * outputs[:, 0])
    tally = Tally(task, Group(ProcessRole(), tf.distribute.get_strategy()))
    values = [[1.0, 2.0, 6.0], [7.0]]
    for each in values:
        tally.add([Predicted(tf.constant(each)[:, None], tf.zeros(len(each)), len(each))])
    samples, metrics, intervals = tally.measured()
    assert (samples, metrics) == (4, {"loss": 4.0})
    margin = 1.959964 * np.std([1, 2, 6, 7], ddof=1) / 2
    assert intervals["loss"] == pytest.approx((4 - margin, 4 + margin))


def test_the_accuracy_and_the_matrix_count_the_same_answers() -> None:
    """Two scores may share a probability, and a score that is not a number is no answer."""
    scores = tf.constant([[0.3, 0.3 + 3e-8], [1.0, 0.0], [np.nan, np.nan]])
    predictions, confidences = evaluate.top_classes(scores)
    assert predictions[:2] == [1, 0]
    assert np.isfinite(confidences).tolist() == [True, True, False]
    assert accuracy(scores, tf.constant([1, 0, 0])).numpy().tolist() == [1, 1, 0]


def test_statistics_of_models_by_name_lag_by_a_few_steps() -> None:
    """MobileNetV2 has 0.999 of its own: its validation would be chance for thousands of steps."""
    model = build_model("keras:mobilenetv2", 32, 2, {"alpha": 0.35})
    momenta = {each.momentum for each in model.layers if isinstance(each, keras.layers.BatchNormalization)}
    assert momenta == {0.9}


def test_a_step_minimizes_the_training_loss() -> None:
    task = measured_task(training_loss=lambda outputs, targets: 2 * outputs[:, 0])
    recent = SimpleNamespace(loss_scale=LossScale(TrainConfig()))
    training: Any = SimpleNamespace(task=task, samples=None, group=SimpleNamespace(replicas=1), recent=recent)
    inputs = tf.ones((3, 4))
    loss, _ = accumulate_gradients(training, inputs, tf.zeros(3), tf.constant(3.0), tf.constant(1.0), 1)
    assert float(loss) == pytest.approx(2 * float(task.model(inputs)[0, 0]), rel=1e-5)


def test_outputs_of_a_model_in_bf16_are_in_fp32_and_other_models_stay_as_they_are() -> None:
    config = TrainConfig(data="synthetic", precision="bf16", image_size=8)
    model, images = build_network(config, ["a", "b"], Path()), tf.ones((1, 8, 8, 3))
    assert model(images).dtype == tf.bfloat16
    assert forward(model, images, training=False).dtype == tf.float32
    assert keras.mixed_precision.dtype_policy().name == "float32"


def test_a_training_computes_in_the_precision_of_its_settings(tmp_path: Path) -> None:
    try:
        found = {each: training_of(tmp_path, each).task.model.compute_dtype for each in ("bf16", "fp16", "fp32")}
    finally:
        keras.mixed_precision.set_dtype_policy("float32")
    assert found == {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}


@pytest.mark.parametrize(
    ("capability", "has_bf16", "chosen"),
    [(None, True, "bf16"), (None, False, "fp32"), ((8, 0), False, "bf16"), ((7, 5), True, "fp32")],
)
def test_a_training_is_in_bf16_if_its_gpus_or_its_cpu_compute_in_it(
    capability: tuple[int, int] | None, has_bf16: bool, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precisions, "_least_capability", lambda: capability)
    monkeypatch.setattr(precisions, "has_bf16", lambda: has_bf16)
    assert precisions.precision_of(TrainConfig()) == chosen
    assert precisions.precision_of(TrainConfig(precision="fp32")) == "fp32"


def test_a_checkpoint_that_is_being_written_is_complete_before_its_memory_is_used_again(tmp_path: Path) -> None:
    model, staging, written = mlp(), Staging(is_needed=True), list[Any]()
    kernel = staging.copy({"model/0": model.weights[0]})["model/0"]
    before, writer = kernel.tolist(), CheckpointWriter(TrainingOutput(tmp_path), TrainConfig())
    model.weights[0].assign(model.weights[0] + 1)

    def write_slowly() -> None:
        time.sleep(0.3)
        written.append(kernel.tolist())

    writer.start_thread(1, write_slowly)
    others = (model, keras.optimizers.SGD(), None, ProcessRole(rank=1, world_size=2))
    checkpoint.save(writer, staging, TrainingProgress(), {}, *others)
    assert written == [before]
    assert kernel.tolist() != before


def test_freezing_every_layer_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="freeze: 'dense\\*' leaves nothing to train"):
        freeze(mlp(2), "dense*")


def test_a_file_of_a_deeper_model_does_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "deep.weights.h5"
    mlp(4, 4, 4).save_weights(path)
    with pytest.raises(InvalidSetting, match=r"it has 8 arrays of weights, and the model 4\. Only the last layer may"):
        load_initial_weights(path, mlp(4))
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dropout(0.5), keras.layers.Dense(2)])
    model.save_weights(path)  # with the state of its random numbers
    load_initial_weights(path, model)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"learning_rate": keras.optimizers.schedules.ExponentialDecay(0.1, 9, 0.5)}, "is a schedule: give it a num"),
        ({"use_ema": True}, "has use_ema: leave it out, and set train.ema_decay"),
        (
            {"gradient_accumulation_steps": 2},
            "has gradient_accumulation_steps: leave it out, and set train.gradient_accumulation",
        ),
    ],
)
def test_an_own_optimizer_may_not_schedule_average_or_accumulate(options: dict[str, Any], says: str) -> None:
    task: Any = SimpleNamespace(model=mlp(2), optimizer=lambda model: keras.optimizers.SGD(**options))
    with pytest.raises(KubetrainError, match=says):
        build_optimizer(TrainConfig(), task, global_batch=8)


@pytest.fixture
def policies(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Return the precisions for which evaluations build their models; none goes further than that."""
    found: list[str] = []

    def build(*_: Any) -> Any:
        found.append(keras.mixed_precision.dtype_policy().name)
        raise KubetrainError("enough")

    monkeypatch.setattr(evaluate, "build_task", build)
    yield found
    keras.mixed_precision.set_dtype_policy("float32")


def test_a_model_is_evaluated_in_the_precision_of_its_training(
    policies: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(evaluate, "prepare_devices", lambda config, role: None)  # allowed only before their first use
    for precision in ("bf16", "fp32"):
        config, output = TrainConfig(precision=precision), TrainingOutput(tmp_path)
        with pytest.raises(KubetrainError, match="enough"):
            evaluate.evaluate(Arguments(config=config, data_dir=tmp_path, output=output, dataset_digest=""))
    assert policies == ["mixed_bfloat16", "float32"]


def test_the_latest_model_is_measured_in_its_own_precision(policies: list[str], tmp_path: Path) -> None:
    group: Any = SimpleNamespace(strategy=tf.distribute.get_strategy())
    model: Any = SimpleNamespace(description={}, path=tmp_path)
    for precision in ("bf16", "fp32"):
        with pytest.raises(KubetrainError, match="enough"):
            evaluate.measure_published(tmp_path, group, model, TrainConfig(precision=precision))
    assert policies == ["mixed_bfloat16", "float32"]
