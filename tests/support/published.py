"""Published models of both frameworks, which have learnt for a second: an evaluation and loading need no more."""

import importlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kubetrain_components.object_store.directory_store import DirectoryStore
from kubetrain_components.promote_model.description import Origin
from kubetrain_components.promote_model.promote import promote_model
from kubetrain_components.run.reuse import ImageVersion
from kubetrain_trainer.frameworks import package_of
from kubetrain_trainer.output.checkpoint_layout import TrainingProgress
from kubetrain_trainer.output.training_output import TrainingOutput
from kubetrain_trainer.processes.entry_point import Arguments
from kubetrain_trainer.settings.config import TrainConfig

DATASET = "d" * 16
STEPS, RATE = 30, 0.01
"""Enough to answer differently to different images."""


def exported(framework: str, folder: Path, data_dir: Path, config: TrainConfig, *, learns: bool = True) -> Arguments:
    """Write what a training leaves behind, and return the arguments of its evaluation."""
    output = TrainingOutput(folder)
    output.begin(framework, config, DATASET)
    checkpoint = output.write_checkpoint(
        TrainingProgress(step=1), {"world_size": 1, "metrics": {}}, lambda path: (path / "state").touch()
    )
    (_export_pytorch if framework == "pytorch" else _export_tensorflow)(output, checkpoint, data_dir, config, learns)
    return Arguments(config=config, data_dir=data_dir, output=output, dataset_digest=DATASET)


def _export_pytorch(output: TrainingOutput, checkpoint: Any, data_dir: Path, config: TrainConfig, learns: bool) -> None:
    import torch

    from kubetrain_trainer.pytorch_ddp.task import build_task

    torch.manual_seed(config.seed)
    task = build_task(config, data_dir)
    if learns:
        _fit_pytorch(task)
    weights = task.model.state_dict()
    output.write_export(checkpoint, {"classes": task.classes}, lambda path: torch.save(weights, path / "model.pt"))


def _fit_pytorch(task: Any) -> None:
    import torch

    samples = task.data("val")
    pixels, labels = zip(*(samples[number] for number in range(len(samples))), strict=True)
    images, parameters = samples.prepare(torch.stack(pixels)), list(task.model.parameters())
    for _ in range(STEPS):
        loss = task.loss(task.model(images), torch.tensor(labels)).mean()
        gradients = torch.autograd.grad(loss, parameters)
        with torch.no_grad():  # torch.optim would import Triton, which aborts in a process that has TensorFlow
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.sub_(RATE * gradient.sign())


def _export_tensorflow(
    output: TrainingOutput, checkpoint: Any, data_dir: Path, config: TrainConfig, learns: bool
) -> None:
    import keras

    from kubetrain_trainer.tensorflow_multiworker.task import build_task

    keras.utils.set_random_seed(config.seed)
    task = build_task(config, data_dir)
    if learns:
        _fit_tensorflow(task)
    output.write_export(
        checkpoint, {"classes": task.classes}, lambda path: task.model.save_weights(path / "model.weights.h5")
    )


def _fit_tensorflow(task: Any) -> None:
    import keras

    from kubetrain_trainer.data.sample_order import keys_of
    from kubetrain_trainer.tensorflow_multiworker.loading import load

    samples = task.data("val")
    ((images, labels),) = load(samples, [keys_of(range(len(samples)))])
    task.model.compile(keras.optimizers.Adam(RATE), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    task.model.fit(samples.prepare(images), labels, batch_size=len(labels), epochs=STEPS, verbose=0)


def evaluated(framework: str, arguments: Arguments, latest: Path | None = None) -> dict[str, Any]:
    """Evaluate as the evaluation's pod does, and return evaluation.json."""
    program: Any = importlib.import_module(f"{package_of(framework)}.evaluate")
    program.prepare_devices = lambda config, role: (
        None
    )  # TensorFlow allows it only before its first use in this process
    program.evaluate(replace(arguments, latest=latest))
    return arguments.output.read_evaluation()


def published(arguments: Arguments, models: Path) -> Path:
    """Publish an evaluated model, and return the folder of its version."""
    origin = Origin(run_id=arguments.output.path.name, dataset_uri="s3://b/d", image=ImageVersion(name="trainer:1"))
    promoted = promote_model(arguments.output, DirectoryStore(models), origin)
    return models / promoted.version


def counted(truths: list[str], predictions: list[str], classes: Mapping[str, int]) -> list[list[int]]:
    """Return the confusion matrix."""
    matrix = [[0] * len(classes) for _ in classes]
    for truth, prediction in zip(truths, predictions, strict=True):
        matrix[classes[truth]][classes[prediction]] += 1
    return matrix
