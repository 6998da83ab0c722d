"""The number of floating-point operations that a model computes to learn from a sample."""

import logging
import math
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from kubetrain_trainer.data.sample_order import keys_of
from kubetrain_trainer.processes.resources import peak_operations
from kubetrain_trainer.settings.config import TrainConfig
from kubetrain_trainer.tensorflow_multiworker.group import Group, gpu_names
from kubetrain_trainer.tensorflow_multiworker.loading import load, preparation
from kubetrain_trainer.tensorflow_multiworker.precision import forward, precision_of
from kubetrain_trainer.tensorflow_multiworker.task import KerasTask

log = logging.getLogger(__name__)


def seconds_at_peak(task: KerasTask, config: TrainConfig, samples: Any, group: Group) -> float:
    """Return the time that all GPUs together need for a sample at least, in rank 0; 0: unknown."""
    peak = min(map(peak_operations, gpu_names()), default=0.0)
    if not (peak and precision_of(config) in ("bf16", "fp16") and group.role.is_rank_0):
        return 0.0
    count = min(2, len(samples))
    inputs, _ = next(load(samples, [keys_of(range(count))], task.collate))
    return operations_per_sample(task.model, preparation(samples)(inputs), count) / (peak * group.replicas)


def operations_per_sample(model: keras.Model, inputs: Any, samples: int) -> float:
    """Count the operations of a forward and backward pass, or return 0 if the model does not allow that.

    Nothing is computed: only the graph is built. It is that of an evaluation, because building an update of statistics
    in one process would leave the others behind.
    """

    def learn(batch: Any) -> list[Any]:
        with tf.GradientTape() as tape:
            sums = [tf.reduce_sum(output) for output in tf.nest.flatten(forward(model, batch, training=False))]
        return [*sums, *tape.gradient(sums, model.trainable_variables)]

    shapes = tf.nest.map_structure(lambda tensor: tf.TensorSpec(tensor.shape, tensor.dtype), inputs)
    try:
        graph = tf.function(learn).get_concrete_function(shapes).graph
        return float(sum(map(_operations, _needed(graph.outputs)))) / samples
    except Exception as error:  # noqa: BLE001 - some models look at what they compute
        log.info("the model's operations cannot be counted: %s", str(error).partition("\n")[0])
        return 0.0


def _needed(results: list[tf.Tensor]) -> list[tf.Operation]:
    """Return what computes the results. A graph also has gradients that nothing needs, such as that of the inputs."""
    found: dict[tf.Operation, None] = {}
    waiting = [result.op for result in results]
    while waiting:
        operator = waiting.pop()
        if operator not in found:
            found[operator] = None
            waiting += [tensor.op for tensor in operator.inputs]
    return list(found)


def _operations(operator: tf.Operation) -> int:
    """Return those of a product; other operators have few and count as none.

    Raises:
        ValueError: for a loop or a condition, because what it repeats or chooses is not known.
    """
    attributes = operator.node_def.attr.values()
    functions = [attribute.func.name for attribute in attributes if attribute.HasField("func")]
    if operator.type not in CALLS and (functions or any(attribute.list.func for attribute in attributes)):
        raise ValueError(f"{operator.name} is a loop or a condition")
    called = [operator.graph._get_function(name).graph.outputs for name in functions]
    inside = sum(_operations(function) for outputs in called for function in _needed(outputs))
    return inside + 2 * PRODUCTS.get(operator.type, lambda _: 0)(operator)


def _matrix_products(operator: tf.Operation) -> int:
    is_transposed = operator.get_attr("transpose_a" if operator.type == "MatMul" else "adj_x")
    return _size(operator.outputs[0]) * int(operator.inputs[0].shape[-2 if is_transposed else -1])


def _convolutions(
    kernel: Callable[[tf.Operation], Any], result: Callable[[tf.Operation], Any], *, channels: int = 1
) -> Callable[[tf.Operation], int]:
    """Count what is multiplied for each number of the result: the kernel, without its dimensions of output channels."""
    return lambda operator: _size(result(operator)) * math.prod(kernel(operator).shape[:-channels])


def _einsum_products(operator: tf.Operation) -> int:
    """Multiply the sizes of all dimensions of the factors, each once."""
    equation = operator.get_attr("equation").decode().partition("->")[0]
    if len(operator.inputs) == 1:
        return 0
    pairs = zip(equation.split(","), operator.inputs, strict=True)
    return math.prod({label: size for term, factor in pairs for label, size in _dimensions(term, factor)}.values())


def _dimensions(term: str, factor: tf.Tensor) -> Iterator[tuple[str, int]]:
    before, dots, after = term.partition("...")
    sizes, first, last = list(factor.shape), len(before), len(factor.shape) - len(after)
    yield from zip(before, sizes[:first], strict=True)
    if dots:
        yield dots, math.prod(sizes[first:last])
    yield from zip(after, sizes[last:], strict=True)


def _size(tensor: tf.Tensor) -> int:
    return math.prod(tensor.shape)


def _first_output(operator: tf.Operation) -> tf.Tensor:
    return operator.outputs[0]


def _second_input(operator: tf.Operation) -> tf.Tensor:
    return operator.inputs[1]


def _third_input(operator: tf.Operation) -> tf.Tensor:
    return operator.inputs[2]


CALLS = ("PartitionedCall", "StatefulPartitionedCall")
PRODUCTS: dict[str, Callable[[tf.Operation], int]] = {
    **dict.fromkeys(("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3"), _matrix_products),
    "Einsum": _einsum_products,
    **dict.fromkeys(("Conv2D", "Conv3D"), _convolutions(_second_input, _first_output)),
    **dict.fromkeys(("Conv2DBackpropInput", "Conv3DBackpropInputV2"), _convolutions(_second_input, _third_input)),
    **dict.fromkeys(("Conv2DBackpropFilter", "Conv3DBackpropFilterV2"), _convolutions(_first_output, _third_input)),
    "DepthwiseConv2dNative": _convolutions(_second_input, _first_output, channels=2),
    "DepthwiseConv2dNativeBackpropInput": _convolutions(_second_input, _third_input, channels=2),
    "DepthwiseConv2dNativeBackpropFilter": _convolutions(_first_output, _third_input, channels=2),
}
"""The products of numbers that an operator computes, by its type."""
