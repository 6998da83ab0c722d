"""Train with a script or command of your own.

python -m kubetrain_trainer.tensorflow_multiworker.own_code --data-dir DATA --output-dir OUTPUT \
    --entry '{"script": "train.py"}'
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from kubetrain_trainer.own_code.program import train_with_own_code
from kubetrain_trainer.processes.entry_point import run, training_arguments

MODULE = "keras.src.backend.tensorflow.trainer"
PARTS = ("_collective_all_reduce_multi_worker", "reduce_per_replica", "tree", "TensorFlowTrainer")
BUILD = "_maybe_symbolic_build"


def repair_when_imported() -> None:
    """Repair Keras when a script imports it: the script may first set variables that Keras and TensorFlow read.

    fit() and evaluate() of Keras 3 fail in several processes: github.com/keras-team/keras/issues/20585. Keras adds up
    the first batch of all processes to learn its shapes, as if a batch were one tensor, and averages numbers along an
    axis, which they don't have.
    """
    sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != MODULE:
            return None
        sys.meta_path.remove(self)
        found = importlib.util.find_spec(name)
        if found and found.loader:
            found.loader.exec_module = partial(_load_and_repair, found.loader.exec_module)  # type: ignore[method-assign]
        return found


def _load_and_repair(load: Callable[[ModuleType], None], trainer: ModuleType) -> None:
    load(trainer)
    repair(trainer)


def repair(trainer: ModuleType) -> None:
    """Replace only what fails: nothing changes for one process, or in a Keras that has other parts."""
    if not all(hasattr(trainer, name) for name in PARTS) or not hasattr(trainer.TensorFlowTrainer, BUILD):
        return
    has_several_processes, tree = trainer._collective_all_reduce_multi_worker, trainer.tree
    reduce, build = trainer.reduce_per_replica, trainer.TensorFlowTrainer._maybe_symbolic_build

    def reduce_per_replica(values: Any, strategy: Any, reduction: str) -> Any:
        if reduction == "concat" or not has_several_processes(strategy):
            return reduce(values, strategy, reduction)
        return tree.map_structure(lambda value: strategy.reduce("MEAN", value, axis=None), values)

    def build_from_shapes(model: Any, iterator: Any = None, data_batch: Any = None) -> None:
        strategy = model._distribute_strategy
        if iterator is not None and strategy is not None and has_several_processes(strategy):
            _, _, batches = next(iter(iterator))
            first = lambda value: strategy.experimental_local_results(value)[0]  # noqa: E731
            iterator, data_batch = None, tree.map_structure(first, next(batches))
        build(model, iterator, data_batch)

    trainer.reduce_per_replica = reduce_per_replica  # type: ignore[attr-defined]
    trainer.TensorFlowTrainer._maybe_symbolic_build = build_from_shapes


if __name__ == "__main__":
    repair_when_imported()
    run(lambda: train_with_own_code(training_arguments("Train with your own TensorFlow script."), "tensorflow"))
